"""Another attempt by hand: same job, same Prefect run, the next BT_RETRY_COUNT, its checkpoints."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefect_bt.blocks import RetryPolicy
from prefect_bt.object_keys import INDEX_ENDED

from .conftest import Machine, call, until
from .test_events import events, labels
from .test_prefect_sees import ask

pytestmark = [pytest.mark.integration]


ENDS_ON_A_FILE = """
while test ! -e $WORD/$BT_RETRY_COUNT; do sleep 0.1; done
test $BT_RETRY_COUNT = 1
"""


@pytest.mark.extended
def test_the_first_supervisor_leaves_a_retried_job_alone(machine: Machine, tmp_path: Path) -> None:
    job_id = machine.push(machine.folder(ENDS_ON_A_FILE, env={"WORD": str(tmp_path)}))["id"]
    machine.wait(job_id, "RUNNING")
    (keeper,) = keepers(machine, job_id)
    os.kill(keeper, signal.SIGSTOP)
    try:
        (tmp_path / "0").touch()
        machine.wait(job_id, "FAILED")
        machine.run("retry", "--job-id", job_id)
        machine.wait(job_id, "RUNNING")
    finally:
        os.kill(keeper, signal.SIGCONT)
    until(lambda: keeper not in keepers(machine, job_id), seconds=20, what="the first one's end")
    assert machine.view(job_id)["current_status"] == "TRAINING_JOB_RUNNING"
    (tmp_path / "1").touch()
    machine.wait(job_id, "COMPLETED")
    assert [a["status"] for a in machine.view(job_id)["attempts"]] == ["failed", "completed"]
    machine.nothing_left(job_id)


@pytest.mark.extended
def test_a_stopped_job_that_is_retried_at_once_goes_on(machine: Machine) -> None:
    job_id = machine.push(machine.folder("test $BT_RETRY_COUNT = 1 || sleep 600\n"))["id"]
    machine.wait(job_id, "RUNNING")
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    machine.run("retry", "--job-id", job_id)
    machine.wait(job_id, "COMPLETED")
    machine.nothing_left(job_id)


# Only the first attempt gets anywhere; the last one, asked for by hand, ends well.
STUCK = """
echo attempt $BT_RETRY_COUNT finds $(ls $BT_CHECKPOINT_DIR) after ${BT_RETRY_REASON:-nothing}
if test $BT_RETRY_COUNT = 3; then until test -e $WORD/go; do sleep 0.1; done; exit 0; fi
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-10
test $BT_RETRY_COUNT != 0 || echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-10/a.json
kill -9 $$
"""


def stored(machine: Machine, job_id: str) -> list[dict[str, Any]]:
    """Return the documents in the index of jobs that ended (decision 014)."""
    store = machine.ledger.store
    infos = list(store.list(f"{INDEX_ENDED}/{job_id}"))
    return [json.loads(store.get(info.key))["document"] for info in infos]


def check_stored(machine: Machine, job_id: str) -> None:
    """Wait for the document, which is written after the event; compare it with the records."""
    [document] = until(lambda: stored(machine, job_id), seconds=10, what="a document")
    assert document == machine.view(job_id)


def test_a_job_without_progress_ends_and_is_retried_once(machine: Machine, tmp_path: Path) -> None:
    policy = RetryPolicy(user=0, first_delay_seconds=0)
    config = machine.folder(STUCK, env={"WORD": str(tmp_path)})
    job = machine.train(config, retry_policy=policy)
    job_id = job["id"]
    assert job["current_status"] == "TRAINING_JOB_FAILED"
    why = (
        "attempts 1 and 2 failed in a row without a newer committed checkpoint than checkpoint-10."
    )
    assert job["error_message"].endswith(f"No further attempt: {why}")
    assert "ended from outside by SIGKILL" in job["error_message"]
    causes = [(a["failure"], a["cause"]) for a in job["attempts"]]
    assert causes == [("infrastructure", "killed")] * 3
    check_stored(machine, job_id)

    def release() -> list[Any]:
        running = lambda: len(machine.ledger.list_attempts(job_id)) == 4  # noqa: E731
        until(running, seconds=60, what="attempt 3")
        found = stored(machine, job_id)
        (tmp_path / "go").touch()
        return found

    with ThreadPoolExecutor() as pool:
        releasing = pool.submit(release)
        done = machine.run("retry", "--job-id", job_id, "--wait", "-o", "json")
        assert releasing.result() == []
    retried = json.loads(done.stdout)
    assert (retried["id"], retried["current_status"]) == (job_id, "TRAINING_JOB_COMPLETED")
    assert len(retried["attempts"]) == 4
    assert len(machine.ledger.runs.list(job_id)) == 1, "one Prefect run"
    logs = machine.logs(job_id)
    for attempt in (1, 2, 3):
        assert f"attempt {attempt} finds checkpoint-10 after killed" in logs
    assert "attempt 0 finds after nothing" in logs
    check_stored(machine, job_id)
    machine.nothing_left(job_id)
    done = machine.run("retry", "--job-id", job_id, check=False)
    assert (done.returncode, f"recreate --job-id {job_id}" in done.stderr) == (1, True)
    assert len(machine.view(job_id)["attempts"]) == 4


def test_a_retry_delay_has_a_reason_and_outlives_a_crash(machine: Machine) -> None:
    patient = ("--retries", "1", "--retry-delay", "900", "--retry-jitter", "0")
    job_id = machine.push(machine.folder("exit 3\n"), *patient)["id"]
    until(lambda: machine.ledger.list_outcomes(job_id), seconds=60, what="the first attempt's end")
    machine.wait(job_id, "CREATED")
    why = "Attempt 1 begins in 900.0 s: retry 1 of 1 for user failures."
    assert machine.view(job_id)["events"][-1]["message"] == why

    def card() -> bool:
        wanted = {"key": {"any_": [f"job-{job_id}"]}}
        found = ask(machine, "artifacts/latest/filter", artifacts=wanted)
        return bool(found) and why in found[0]["data"]

    until(card, seconds=20, what="the reason on the card")
    run_id = machine.ledger.runs.list(job_id)[-1].flow_run_id

    def line() -> bool:
        found = ask(machine, "logs/filter", logs={"flow_run_id": {"any_": [run_id]}})
        return any(log["message"].startswith(f"{why} Attempt 0: Rank 0") for log in found)

    until(line, seconds=20, what="the reason in the run's log")
    flow = flow_processes(machine, job_id)
    for pid in flow:
        os.kill(pid, signal.SIGKILL)
    until(lambda: flow_processes(machine, job_id) - flow, seconds=30, what="another flow process")
    (recovered,) = labels(events(machine, job_id, "job.recovered"), "job.recovered")
    assert recovered["attempt"] == "0"
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED", seconds=30)
    assert [a["status"] for a in machine.view(job_id)["attempts"]] == ["failed"]

    def cancelled() -> bool:
        of_run = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = ask(machine, "task_runs/filter", **of_run)
        states = [one["state_type"] for one in tasks if one["name"].startswith("training")]
        run = call(machine, "GET", f"flow_runs/{run_id}")
        return "CANCELLED" in states and run["state_type"] == "CANCELLED"

    until(cancelled, seconds=40, what="the cancelled run and its task")
    machine.nothing_left(job_id)


def flow_processes(machine: Machine, job_id: str) -> set[int]:
    return of_module(machine, job_id, "prefect_bt.supervisor.run_flow")


def keepers(machine: Machine, job_id: str) -> set[int]:
    return of_module(machine, job_id, "prefect_bt.supervisor.process")


def of_module(machine: Machine, job_id: str, module: str) -> set[int]:
    found: set[int] = set()
    for pid in machine.job_processes(job_id):
        with suppress(psutil.NoSuchProcess):
            if module in psutil.Process(pid).cmdline():
                found.add(pid)
    return found
