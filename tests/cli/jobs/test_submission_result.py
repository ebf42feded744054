"""Staying with a job that was just submitted: its lines look as `logs --tail` shows them."""

import sys

import pytest

from prefect_bt.cli.jobs.submission_result import print_and_follow
from prefect_bt.cli.ui.terminal import open_terminal
from prefect_bt.definitions import Compute
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.jobs.job_json import job_document
from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from tests.cli.conftest import Shop, Within


@pytest.fixture
def document(shop: Shop, running) -> dict:
    """Of a job of two ranks that is over; both printed the same first line."""
    record = shop.job("tiny", *running, compute=Compute(node_count=2))
    shop.ledger.begin_attempt(record.id)
    for rank in range(2):
        shop.log(record, ["loading", f"loss of {rank}"], rank=rank)
    shop.ledger.end_attempt(record.id, Outcome(0, JobState.COMPLETED))
    shop.ledger.append_event(record.id, JobState.COMPLETED)
    return job_document(shop.ledger, record)


def lines(text: str) -> list[str]:
    """Return the lines of ranks, without their times."""
    return [line.partition("]: ")[2] for line in text.splitlines() if "]: (rank" in line]


EACH = ["(rank-0) loading", "(rank-1) loading", "(rank-0) loss of 0", "(rank-1) loss of 1"]


@pytest.mark.parametrize(
    ("tty", "output", "out", "err"),
    [
        (True, "cli-table", EACH, []),
        (False, "cli-table", EACH, []),
        (True, "json", [], EACH),
        (False, "json", [], EACH),
    ],
)
def test_lines_go_to_standard_error_beside_a_document(
    document: dict,
    shop: Shop,
    within: Within,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tty: bool,
    output: str,
    out: list[str],
    err: list[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    terminal = open_terminal(interactive=False, debug=False, output=output)
    jobs = StoreJobs(shop.ledger)
    assert print_and_follow(terminal, jobs, document, tail=True, wait=False) == 0
    told = capsys.readouterr()
    assert (lines(told.out), lines(told.err)) == (out, err)
    assert "completed successfully" in told.err
