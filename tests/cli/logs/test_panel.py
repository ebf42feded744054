"""The live panel of a followed job, on a real terminal."""

import time

import pytest

from prefect_bt import codec
from prefect_bt.ledger.records import Outcome, UploadStatus
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import uploads_prefix
from tests.cli.conftest import Cli, Shop, StartScreen

pytestmark = [pytest.mark.slow]


def test_state_uploads_and_log_lines_until_the_end(on_screen: StartScreen, shop: Shop, running):
    shop.at = time.time()
    job = shop.job("tiny", *running)
    shop.ledger.runs.bind("0240472f", job.id, url="http://127.0.0.1:4200/runs/flow-run/0240472f")
    attempt = shop.ledger.begin_attempt(job.id)
    status = UploadStatus(
        updated_at=shop.at,
        committed=("checkpoint-10",),
        current="checkpoint-20",
        bytes_done=370,
        bytes_total=1000,
        rate=100.0,
    )
    key = f"{uploads_prefix(job.project_id, job.id, attempt)}/rank-0.json"
    shop.ledger.store.put(key, codec.dumps(status).encode())
    shop.log(job, ["loss 1.5", "loss 1.4"])
    screen = on_screen("logs", "--job-id", job.id, "--tail")
    shown = screen.wait_for("RUNNING", "attempt 0", "1 node", "checkpoint-20", "newest")
    assert "370 B of 1.0 KB (37 %), 100 B/s, 6 s left" in shown
    assert "1 committed, newest checkpoint-10" in shown
    assert "http://127.0.0.1:4200/runs/flow-run/0240472f" in shown
    shop.ledger.end_attempt(job.id, Outcome(attempt, JobState.COMPLETED))
    shop.ledger.append_event(job.id, JobState.COMPLETED)
    assert screen.end() == 0
    said = screen.said.decode()
    assert said.index("loss 1.5") < said.index("loss 1.4")
    assert said.rstrip().endswith("completed successfully.\x1b[0m")


def test_a_pipe_has_no_panel(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["loss 1.5"])
    done = cli.process("logs", "--job-id", job.id, "--tail")
    assert "loss 1.5" in done.out
    assert "\x1b" not in done.out + done.err
    assert "Ctrl-C detaches" not in done.out + done.err
