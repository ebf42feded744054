"""The log of a real gang that floods, fails and is tried again: sealed, followed, explained."""

import hashlib
import json
import os
import signal
import subprocess
from contextlib import suppress

import pytest

from prefect_bt.object_keys import log_key

from .conftest import Machine

pytestmark = [pytest.mark.integration]

GANG = """
echo attempt $BT_RETRY_COUNT is loading
if [ $BT_RETRY_COUNT = 0 ] && [ $BT_NODE_RANK = 1 ]; then
    seq -f 'line %g of the flood' 1 30000
    echo "the last word" >&2
    exit 3
fi
test $BT_RETRY_COUNT = 1 || sleep 60
"""


def test_a_gang_that_fails_and_is_tried_again(machine: Machine) -> None:
    job_id = machine.push(machine.folder(GANG, nodes=2), "--retries", "1")["id"]
    done = machine.run("logs", "--job-id", job_id, "--tail")
    assert f"Training job {job_id} completed successfully." in done.stderr
    shown = [line.partition("]: ")[2] for line in done.stdout.splitlines()]
    flood = [line for line in shown if line.endswith("of the flood")]
    assert flood == [f"(rank-1) line {n} of the flood" for n in range(1, 30_001)]
    loading = [line for line in shown if line.endswith("attempt 1 is loading")]
    assert set(loading) == {f"(rank-{rank}) attempt 1 is loading" for rank in range(2)}
    assert shown.index(loading[0]) > shown.index(flood[-1])

    why = machine.run("logs", "--job-id", job_id, "--first-failure").stdout.splitlines()
    assert why[0].startswith("Attempt 0: Rank 1 failed first")
    assert len(why) == 51
    assert any(line.endswith("(rank-1) the last word") for line in why)
    assert any("of the flood" in line for line in why)

    sealed_as_recorded(machine, job_id)


def sealed_as_recorded(machine: Machine, job_id: str) -> None:
    """Every rank of every attempt; and a byte that changed is noticed."""
    ledger = machine.ledger
    project = ledger.get_job(job_id).project_id
    outcomes = ledger.list_outcomes(job_id)
    assert [[one.rank for one in outcome.logs] for outcome in outcomes] == [[0, 1], [0, 1]]
    for outcome in outcomes:
        for one in outcome.logs:
            data = ledger.store.get(log_key(project, job_id, outcome.attempt, one.rank))
            assert (len(data), data.count(b"\n")) == (one.bytes, one.lines)
            assert hashlib.sha256(data).hexdigest() == one.sha256
    assert outcomes[0].logs[1].lines > 30_000
    key = log_key(project, job_id, 1, 0)
    data = ledger.store.get(key)
    ledger.store.put(key, data.replace(b"is loading", b"is l0ading"))
    done = machine.run("logs", "--job-id", job_id, "--attempt", "-1")
    assert "(rank-0) attempt 1 is l0ading" in done.stdout
    assert "The log of rank 0 of attempt 1 is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_with_dead_processes_is_followed_to_its_end(machine: Machine) -> None:
    job_id = machine.push(machine.folder("echo ready; exec sleep 300\n"))["id"]
    words = ("logs", "--job-id", job_id, "--tail", "--no-platform", "-o", "json")
    tail = subprocess.Popen(
        machine.command(*words),
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stdout
    assert json.loads(tail.stdout.readline())["replica"] == "rank-0"
    for pid in machine.job_processes(job_id):
        if pid != tail.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    # Whoever sees it first takes it up again, or writes its end down: this ends it either way.
    machine.run("stop", "--job-id", job_id, check=False)
    _, err = tail.communicate(timeout=400)
    assert tail.returncode == 0, err
    assert machine.ledger.get_state(job_id).terminal
    machine.nothing_left(job_id)
