"""Jobs of the deployment train/train, run by a real process worker: what happens there to a job.

`prefect-bt up` made the server, the deployment and the worker; the worker looks for runs every two
seconds and starts a process for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
import pytest

from prefect_bt.cli.prefect_api import MOST_CRASHES
from prefect_bt.ownership import is_owned
from prefect_bt.records import JobState
from prefect_bt.servers import read_server

from .conftest import Machine, until
from .test_python_api import output, python

pytestmark = [pytest.mark.integration]

DEPLOYMENT = ("--deployment", "train/train")

# The first attempt commits a checkpoint and waits; any other says what it finds, and ends well.
RESUMES = """
echo attempt $BT_RETRY_COUNT of $BT_TRAINING_JOB_ID finds "<$(cat $BT_CHECKPOINT_DIR/c/step.json)>"
test $BT_RETRY_COUNT = 0 || exit 0
mkdir -p $BT_CHECKPOINT_DIR/c
echo 41 > $BT_CHECKPOINT_DIR/c/step.json
exec sleep 600
"""


def call(machine: Machine, method: str, path: str, **body: Any) -> Any:
    url = f"{machine.api_url}/{path}"
    deadline = time.monotonic() + 20
    while True:
        answer = httpx.request(method, url, json=body or None, timeout=30)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
            break
        time.sleep(0.5)  # its SQLite is busy; Prefect's own client tries again, too
    answer.raise_for_status()
    return answer.json() if answer.content else None


def flow_run(machine: Machine, run_id: str) -> Any:
    return call(machine, "GET", f"flow_runs/{run_id}")


def run_is(machine: Machine, run_id: str, *types: str, seconds: float = 40) -> Any:
    """The run, once its state is of one of the types."""

    def seen() -> Any:
        run = flow_run(machine, run_id)
        return run if run["state_type"] in types else None

    return until(seen, seconds=seconds, what=f"run {run_id} {types}")


def retry(machine: Machine, run_id: str) -> None:
    """As the UI's Retry button and `prefect flow-run retry` do."""
    state = {"type": "SCHEDULED", "message": "Retried"}
    call(machine, "POST", f"flow_runs/{run_id}/set_state", state=state, force=True)


def running(machine: Machine, words: str, script: str, **given: Any) -> dict[str, Any]:
    """A job that the worker runs and that has printed `words`."""
    job = machine.push(machine.folder(script, **given), *DEPLOYMENT)
    until(lambda: words in machine.logs(job["id"]), seconds=60, what=words)
    return job


def run_from_form(machine: Machine, parameters: dict[str, Any]) -> str:
    """As the UI's form does; returns the run's id."""
    deployment = call(machine, "GET", "deployments/name/train/train")
    path = f"deployments/{deployment['id']}/create_flow_run"
    return call(machine, "POST", path, parameters=parameters)["id"]


def kill_flow(run_id: str) -> None:
    """SIGKILL to the process in which the worker runs the flow, and to no node of the job."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            theirs = process.environ().get("PREFECT__FLOW_RUN_ID", "")
            node = "prefect_bt.node" in " ".join(process.cmdline())
            if theirs and UUID(theirs) == UUID(run_id) and not node:
                found.append(process)
        except psutil.Error:
            continue
    assert found, "the flow's process"
    for process in found:
        process.send_signal(signal.SIGKILL)


@contextmanager
def paused(machine: Machine) -> Iterator[None]:
    """No worker takes a run meanwhile."""
    call(machine, "PATCH", "work_pools/training", is_paused=True)
    try:
        yield
    finally:
        call(machine, "PATCH", "work_pools/training", is_paused=False)


def test_a_pushed_job_waits_for_the_worker_and_is_shown_in_prefect(machine: Machine) -> None:
    script = "mkdir -p $BT_CHECKPOINT_DIR/c; echo {} > $BT_CHECKPOINT_DIR/c/a.json"
    job = machine.push(machine.folder(script, nodes=2), *DEPLOYMENT)
    assert job["current_status"] == "TRAINING_JOB_PENDING"
    assert job["flow_run_url"]
    machine.wait(job["id"], "COMPLETED")
    run_id = job["flow_run_id"]
    run = run_is(machine, run_id, "COMPLETED")
    assert job["id"] in run["name"]

    of_run = {"flow_runs": {"id": {"any_": [run_id]}}}
    tasks = call(machine, "POST", "task_runs/filter", **of_run)
    ranks = sorted(task["name"] for task in tasks if task["name"].startswith("run-node"))
    assert ranks == ["run-node rank-0", "run-node rank-1"]
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}

    key = {"key": {"any_": [f"job-{job['id']}"]}}
    (card,) = call(machine, "POST", "artifacts/latest/filter", artifacts=key)
    assert "TRAINING_JOB_COMPLETED" in card["data"]
    assert card["flow_run_id"] == run_id

    def events() -> set[str]:
        wanted = {
            "event": {"prefix": ["prefect-bt.job."]},
            "resource": {"id": [f"prefect-bt.job.{job['id']}"]},
        }
        found = call(machine, "POST", "events/filter", filter=wanted, limit=50)["events"]
        return {event["event"].removeprefix("prefect-bt.job.") for event in found}

    expected = {"created", "deploying", "running", "completed"}
    until(lambda: events() >= expected, seconds=20, what=f"events {expected}")
    machine.nothing_left(job["id"])


def test_a_job_stopped_before_the_worker_takes_it_never_runs(machine: Machine) -> None:
    with paused(machine):
        job = machine.push(machine.folder("echo it runs\n"), *DEPLOYMENT)
        assert job["current_status"] == "TRAINING_JOB_PENDING"
        stopped = machine.run("stop", "--job-id", job["id"])
        assert "stopped" in stopped.stdout + stopped.stderr
        assert machine.ledger.state(job["id"]) is JobState.STOPPED
        run_is(machine, job["flow_run_id"], "CANCELLED", seconds=1)
    # Also when somebody has the run begin all the same.
    retry(machine, job["flow_run_id"])
    run_is(machine, job["flow_run_id"], "PENDING", "RUNNING")
    run_is(machine, job["flow_run_id"], "CANCELLED")
    assert machine.ledger.state(job["id"]) is JobState.STOPPED
    assert machine.ledger.attempts(job["id"]) == []
    machine.nothing_left(job["id"])


def test_a_run_cancelled_before_the_worker_takes_it_stops_its_job(machine: Machine) -> None:
    with paused(machine):
        job = machine.push(machine.folder("echo it runs\n"), *DEPLOYMENT)
        state = {"type": "CANCELLING"}
        call(machine, "POST", f"flow_runs/{job['flow_run_id']}/set_state", state=state)
        run_is(machine, job["flow_run_id"], "CANCELLED", seconds=10)
        assert machine.view(job["id"])["current_status"] == "TRAINING_JOB_STOPPED"
    machine.nothing_left(job["id"])


def test_cancelled_in_prefect_while_it_runs(machine: Machine) -> None:
    job = running(machine, "ready", "echo ready; sleep 600\n")
    state = {"type": "CANCELLING"}
    call(machine, "POST", f"flow_runs/{job['flow_run_id']}/set_state", state=state)
    machine.wait(job["id"], "STOPPED", seconds=40)
    run_is(machine, job["flow_run_id"], "CANCELLED")
    machine.nothing_left(job["id"])


def test_the_flow_is_killed_and_the_gang_goes_on(machine: Machine) -> None:
    script = "echo attempt $BT_RETRY_COUNT begins; sleep 10; echo attempt $BT_RETRY_COUNT ends\n"
    job = running(machine, "attempt 0 begins", script)
    kill_flow(job["flow_run_id"])
    machine.wait(job["id"], "COMPLETED")
    run_is(machine, job["flow_run_id"], "COMPLETED")
    assert "attempt 0 ends" in machine.logs(job["id"])
    assert len(machine.view(job["id"])["attempts"]) == 1
    assert one_run(machine, job)
    machine.nothing_left(job["id"])


def test_the_flow_is_killed_with_its_gang_and_the_next_attempt_begins(machine: Machine) -> None:
    job = running(machine, "attempt 0", RESUMES)
    until(lambda: machine.checkpoints(job["id"]), seconds=30, what="a commit")
    kill_flow(job["flow_run_id"])
    for pid in machine.job_processes(job["id"]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    machine.wait(job["id"], "COMPLETED")
    assert f"attempt 1 of {job['id']} finds <41>" in machine.logs(job["id"])
    run_is(machine, job["flow_run_id"], "COMPLETED")
    assert one_run(machine, job)
    machine.nothing_left(job["id"])


def one_run(machine: Machine, job: dict[str, Any]) -> bool:
    """Whether all of the job's attempts are those of the run that began it."""
    runs = machine.ledger.runs_of_job(job["id"])
    return [run.flow_run_id for run in runs] == [job["flow_run_id"]]


def test_a_failed_job_is_retried_by_hand(machine: Machine) -> None:
    script = "echo attempt $BT_RETRY_COUNT; test $BT_RETRY_COUNT = 1 || exit 3\n"
    job = machine.push(machine.folder(script), *DEPLOYMENT)
    machine.wait(job["id"], "FAILED")
    failed = run_is(machine, job["flow_run_id"], "FAILED")
    assert "exited with 3" in failed["state"]["message"]
    retry(machine, job["flow_run_id"])
    machine.wait(job["id"], "COMPLETED")
    assert "attempt 1" in machine.logs(job["id"])
    assert len(machine.view(job["id"])["attempts"]) == 2


def test_a_run_from_the_form_with_blocks(machine: Machine, tmp_path: Path) -> None:
    """Every block by reference, its store and state folder other ones than the worker's own."""
    script = 'echo "$BT_GROUP_SIZE nodes, secret of ${#TOKEN} letters"; exec sleep 600\n'
    config = machine.folder(script, env={"TOKEN": {"name": "form_token"}})
    store, state = tmp_path / "store", tmp_path / "state"
    made = python(
        machine,
        f"""
        import json
        from prefect_bt import blocks as b
        blocks = dict(
            compute=b.TrainingCompute(node_count=2, memory="64Mi"),
            secrets=b.TrainingSecrets(values={{"form_token": "planted-7c1e-form"}}),
            store=b.TrainingStore(url={str(store)!r}),
            substrate=b.LocalSubstrate(
                state_dir={str(state)!r}, grace_seconds=5, orphan_deadline_seconds=6
            ),
        )
        saved = {{name: str(block.save(f"form-{{name}}", overwrite=True))
                 for name, block in blocks.items()}}
        print(json.dumps(saved))
        """,
    )
    references = {
        name: {"$ref": {"block_document_id": block}}
        for name, block in json.loads(output(made)).items()
    }
    run_id = run_from_form(machine, {"config": str(config), **references})
    there = Machine(
        tmp_path,
        {
            **machine.environment,
            "PREFECT_BT_STORE": str(store),
            "PREFECT_BT_STATE_DIR": str(state),
        },
    )
    job_id = until(lambda: there.ledger.job_of_run(run_id), seconds=60, what="the job")
    until(lambda: "2 nodes, secret of 17" in there.logs(job_id), seconds=30, what="its line")
    assert machine.ledger.job_of_run(run_id) is None
    kill_flow(run_id)
    until(lambda: not is_owned(state, job_id), seconds=10, what="the flow's end")
    until(lambda: is_owned(state, job_id), seconds=30, what="somebody to take the job up again")
    there.run("stop", "--job-id", job_id)
    there.wait(job_id, "STOPPED", seconds=30)
    run_is(machine, run_id, "CANCELLED")
    there.nothing_left(job_id)


def test_a_run_that_a_worker_died_with_is_scheduled_again(machine: Machine) -> None:
    """As if it had been killed between taking the run and starting its process."""
    with paused(machine):
        job = machine.push(machine.folder("echo it runs\n"), *DEPLOYMENT)
        state = {"type": "PENDING"}
        path = f"flow_runs/{job['flow_run_id']}/set_state"
        call(machine, "POST", path, state=state, force=True)
    known = read_server(machine.state_dir) or {}
    module = [sys.executable, "-m", "prefect_bt.cli.rescheduling", known["api_url"]]
    run_now = [*module, str(time.time() - 3600)]
    subprocess.run(run_now, env=machine.environment, check=True)
    assert flow_run(machine, job["flow_run_id"])["state_type"] == "PENDING", "taken just now"
    subprocess.run([*module, str(time.time())], env=machine.environment, check=True)
    machine.wait(job["id"], "COMPLETED")
    machine.nothing_left(job["id"])


def test_a_run_that_found_no_server_begins_again(machine: Machine) -> None:
    """As if its process had been started in the moment in which the server died."""
    with paused(machine):
        jobs = [machine.push(machine.folder("echo it runs\n"), *DEPLOYMENT) for _ in range(2)]
        for job in jobs:
            path = f"flow_runs/{job['flow_run_id']}/set_state"
            call(machine, "POST", path, state={"type": "CRASHED"}, force=True)
    known = read_server(machine.state_dir) or {}
    machine.view(jobs[0]["id"])  # who looks at a job sees to it
    module = [sys.executable, "-m", "prefect_bt.cli.rescheduling", known["api_url"], "0"]
    subprocess.run(module, env=machine.environment, check=True)
    for job in jobs:
        machine.wait(job["id"], "COMPLETED")
        machine.nothing_left(job["id"])


def test_a_run_that_crashes_every_time_is_the_end_of_its_job(machine: Machine) -> None:
    with paused(machine):
        job = machine.push(machine.folder("echo never\n"), *DEPLOYMENT)
        path = f"flow_runs/{job['flow_run_id']}/set_state"
        for _ in range(MOST_CRASHES):
            call(machine, "POST", path, state={"type": "CRASHED"}, force=True)
            machine.view(job["id"])
            assert flow_run(machine, job["flow_run_id"])["state_type"] == "SCHEDULED"
        call(machine, "POST", path, state={"type": "CRASHED"}, force=True)
        seen = machine.view(job["id"])
    assert seen["current_status"] == "TRAINING_JOB_FAILED"
    assert "crashed before the job began" in seen["error_message"]
    machine.nothing_left(job["id"])


def test_a_flow_goes_on_when_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    """A worker that is killed takes the other end of its flows' pipes with it."""
    script = """
import sys
import prefect_bt.flows.train
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
setup_logging()
sys.stdin.readline()
for line in range(3):
    get_logger("anything").warning("line %d", line)
open(sys.argv[1], "w").write("went on")
"""
    flow = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "end")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert flow.stdout is not None
    flow.stdout.close()
    flow.communicate(b"go\n", timeout=60)
    assert flow.returncode == 0
    assert (tmp_path / "end").read_text() == "went on"
