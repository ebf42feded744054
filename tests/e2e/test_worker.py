"""Jobs of the deployment train/train, run by a real process worker: what happens there to a job.

`prefect-bt up` made the server, the deployment and the worker; the worker looks for runs every two
seconds and starts a process for each.
"""

import fcntl
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

import psutil
import pytest

from prefect_bt import blocks
from prefect_bt.ledger.states import JobState
from prefect_bt.prefect_api.client import MAX_CRASHES
from tests.in_process import environment_of

from .conftest import Machine, call, until

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


def flow_processes_of(run_id: str) -> list[psutil.Process]:
    """Return the processes in which the worker runs the flow, and no node of the job."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            theirs = process.environ().get("PREFECT__FLOW_RUN_ID", "")
            node = "prefect_bt.node_agent" in " ".join(process.cmdline())
            if theirs and UUID(theirs) == UUID(run_id) and not node:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_flow(run_id: str) -> None:
    found = flow_processes_of(run_id)
    assert found, "the flow's process"
    for process in found:
        process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def machine(served_machine: Machine) -> Machine:
    """The one with the worker, which other processes of pytest use as well."""
    return served_machine


@contextmanager
def paused(machine: Machine) -> Iterator[None]:
    """No worker takes a run meanwhile; one block at a time."""
    with (machine.root / "pool.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _paused(machine):
            yield


@contextmanager
def _paused(machine: Machine) -> Iterator[None]:
    call(machine, "PATCH", "work_pools/training", is_paused=True)
    try:
        yield
    finally:
        call(machine, "PATCH", "work_pools/training", is_paused=False)


def test_a_pushed_job_waits_for_the_worker_fails_and_is_retried_by_hand(machine: Machine) -> None:
    script = """
    mkdir -p $BT_CHECKPOINT_DIR/c; echo {} > $BT_CHECKPOINT_DIR/c/a.json
    test $BT_RETRY_COUNT = 1 || exit 3
    """
    with paused(machine):
        job = machine.push(machine.folder(script, nodes=2), *DEPLOYMENT)
        assert job["current_status"] == "TRAINING_JOB_PENDING"
    config = str(machine.folder("true\n", project="undeployed"))
    refused = machine.run("push", config, "--deployment", "nope/train", check=False)
    assert refused.returncode == 1
    assert "No deployment is called 'nope/train'" in refused.stderr
    assert machine.jobs_of("undeployed") == []
    assert job["flow_run_url"]
    run_id = job["flow_run_id"]
    machine.wait(job["id"], "FAILED")
    failed = run_is(machine, run_id, "FAILED")
    assert "exited with 3" in failed["state"]["message"]
    retry(machine, run_id)
    machine.wait(job["id"], "COMPLETED")
    run = run_is(machine, run_id, "COMPLETED")
    assert job["id"] in run["name"]
    assert len(machine.view(job["id"])["attempts"]) == 2

    def ranks() -> list[tuple[str, str]]:
        of_run = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = call(machine, "POST", "task_runs/filter", **of_run)
        found = ((task["name"], task["state_type"]) for task in tasks)
        return sorted(one for one in found if one[0].startswith("attempt 1 · rank"))

    # Prefect makes them of events, which may come after the run's end.
    wanted = [(f"attempt 1 · rank {rank}", "COMPLETED") for rank in range(2)]
    until(lambda: ranks() == wanted, seconds=30, what=lambda: f"{wanted}, but {ranks()}")

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

    expected = {"created", "deploying", "running", "failed", "completed"}
    until(lambda: events() >= expected, seconds=20, what=f"events {expected}")
    machine.nothing_left(job["id"])


@pytest.mark.extended
def test_runs_that_the_worker_has_not_begun(machine: Machine) -> None:
    """Stopped or cancelled before it takes them they never run. A forgotten one runs, and one that
    crashed is scheduled again a few times."""
    with paused(machine):
        jobs = [machine.push(machine.folder("echo it runs\n"), *DEPLOYMENT) for _ in range(4)]
        stopped, cancelled, forgotten, hopeless = jobs
        assert {job["current_status"] for job in jobs} == {"TRAINING_JOB_PENDING"}

        told = machine.run("stop", "--job-id", stopped["id"])
        assert "stopped" in told.stdout + told.stderr
        assert machine.ledger.get_state(stopped["id"]) is JobState.STOPPED
        run_is(machine, stopped["flow_run_id"], "CANCELLED", seconds=1)

        set_state(machine, cancelled, "CANCELLING", force=False)
        run_is(machine, cancelled["flow_run_id"], "CANCELLED", seconds=10)
        assert machine.view(cancelled["id"])["current_status"] == "TRAINING_JOB_STOPPED"

        # As if its worker had been killed between taking the run and starting its process.
        set_state(machine, forgotten, "PENDING")
        # As if its process had been started in the moment in which the server died.
        for _ in range(MAX_CRASHES):
            set_state(machine, hopeless, "CRASHED")
            machine.view(hopeless["id"])  # who looks at a job sees to it
            assert flow_run(machine, hopeless["flow_run_id"])["state_type"] == "SCHEDULED"
        set_state(machine, hopeless, "CRASHED")
        seen = machine.view(hopeless["id"])
        assert seen["current_status"] == "TRAINING_JOB_FAILED"
        assert "crashed before the job began" in seen["error_message"]

        wanted = [forgotten["flow_run_id"]]
        until(lambda: pending(machine) == wanted, seconds=30, what="no run of another test taken")
        reschedule(machine, time.time() - 3600)
        assert pending(machine) == wanted, "taken just now"
        reschedule(machine, time.time())
    machine.wait(forgotten["id"], "COMPLETED")
    # Also when somebody has the run begin all the same.
    retry(machine, stopped["flow_run_id"])
    run_is(machine, stopped["flow_run_id"], "CANCELLED")
    assert machine.ledger.get_state(stopped["id"]) is JobState.STOPPED
    assert machine.ledger.list_attempts(stopped["id"]) == []
    for job in jobs:
        machine.nothing_left(job["id"])


def set_state(machine: Machine, job: dict[str, Any], kind: str, *, force: bool = True) -> None:
    path = f"flow_runs/{job['flow_run_id']}/set_state"
    call(machine, "POST", path, state={"type": kind}, force=force)


def pending(machine: Machine) -> list[str]:
    """Ids of the pool's runs that a worker has taken and not begun."""
    state = {"state": {"type": {"any_": ["PENDING"]}}}
    pool = {"name": {"any_": ["training"]}}
    found = call(machine, "POST", "flow_runs/filter", flow_runs=state, work_pools=pool)
    return [run["id"] for run in found]


def reschedule(machine: Machine, before: float) -> None:
    """As the watchdog does once it has started the server or the worker again."""
    module = [sys.executable, "-m", "prefect_bt.local_server.reschedule_runs"]
    arguments = [machine.api_url, str(before)]
    subprocess.run([*module, *arguments], env=machine.environment, check=True)


@pytest.mark.extended
def test_the_flow_is_killed_and_the_gang_goes_on(machine: Machine, tmp_path: Path) -> None:
    script = """
    echo attempt $BT_RETRY_COUNT begins
    until test -e $WORD/go; do sleep 0.1; done
    echo attempt $BT_RETRY_COUNT ends
    """
    job = running(machine, "attempt 0 begins", script, env={"WORD": str(tmp_path)})
    kill_flow(job["flow_run_id"])
    wait_for_adoption(machine, job["flow_run_id"])
    (tmp_path / "go").touch()
    machine.wait(job["id"], "COMPLETED")
    run_is(machine, job["flow_run_id"], "COMPLETED")
    assert "attempt 0 ends" in machine.logs(job["id"])
    assert len(machine.view(job["id"])["attempts"]) == 1
    assert one_run(machine, job)
    machine.nothing_left(job["id"])


@pytest.mark.extended
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


def wait_for_adoption(machine: Machine, run_id: str) -> None:
    """Wait until another flow process watches the nodes; without one they would end as well."""
    of_run = {"flow_run_id": {"any_": [run_id]}}

    def is_adopted() -> bool:
        lines = call(machine, "POST", "logs/filter", logs=of_run)
        return any(line["message"].startswith("Attempt 0 continues: ") for line in lines)

    until(is_adopted, seconds=60, what=f"run {run_id} to adopt its nodes")


def one_run(machine: Machine, job: dict[str, Any]) -> bool:
    """Whether all of the job's attempts are those of the run that began it."""
    runs = machine.ledger.runs.list(job["id"])
    return [run.flow_run_id for run in runs] == [job["flow_run_id"]]


def test_a_run_from_the_form_with_blocks_whose_flow_is_killed_goes_on(
    machine: Machine, tmp_path: Path
) -> None:
    """Every block by reference, its store and state folder other ones than the worker's own."""
    script = """
    echo "$BT_GROUP_SIZE nodes, secret of ${#TOKEN} letters"
    until test -e $WORD/go; do sleep 0.1; done
    echo attempt $BT_RETRY_COUNT ends
    """
    environment = {"TOKEN": {"name": "form_token"}, "WORD": str(tmp_path)}
    config = machine.folder(script, env=environment)
    store, state = tmp_path / "store", tmp_path / "state"
    values = {"form_token": "planted-7c1e-form"}
    chosen = {
        "compute": blocks.TrainingCompute(node_count=2, memory="64Mi"),
        "secrets": blocks.TrainingSecrets.model_validate({"values": values}),
        "store": blocks.TrainingStore(url=str(store)),
        "substrate": blocks.LocalSubstrate(
            state_dir=str(state), grace_seconds=5, orphan_deadline_seconds=60
        ),
    }
    with environment_of({**machine.environment, **machine.api}):
        references = {
            name: {"$ref": {"block_document_id": str(block.save(f"form-{name}", overwrite=True))}}
            for name, block in chosen.items()
        }
    run_id = run_from_form(machine, {"config": str(config), **references})
    places = {"PREFECT_BT_STORE": str(store), "PREFECT_BT_STATE_DIR": str(state)}
    there = Machine(tmp_path, machine.environment | places)
    job_id = until(lambda: there.ledger.runs.find_job(run_id), seconds=60, what="the job")
    until(lambda: "2 nodes, secret of 17" in there.logs(job_id), seconds=30, what="its line")
    assert machine.ledger.runs.find_job(run_id) is None
    kill_flow(run_id)
    wait_for_adoption(machine, run_id)
    (tmp_path / "go").touch()
    there.wait(job_id, "COMPLETED")
    run_is(machine, run_id, "COMPLETED")
    assert "attempt 0 ends" in there.logs(job_id)
    assert len(there.view(job_id)["attempts"]) == 1
    assert one_run(there, {"id": job_id, "flow_run_id": run_id})
    there.nothing_left(job_id)


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
    flow.communicate(b"go\n", timeout=200)
    assert flow.returncode == 0
    assert (tmp_path / "end").read_text() == "went on"
