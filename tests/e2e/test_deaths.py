"""The death of any process: nothing committed is lost, nothing goes on unowned."""

import re
import shutil
import signal
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from prefect_bt.host.job_lock import is_owned

from .conftest import Machine, call, until
from .test_worker import run_is

pytestmark = [pytest.mark.integration]

# Each attempt says what it finds, commits one checkpoint, then waits; the last one ends well.
TRAIN = """
echo attempt $BT_RETRY_COUNT finds $(ls $BT_CHECKPOINT_DIR | tr '\\n' ' ')
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
echo "[$BT_RETRY_COUNT]" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/state.json
test $BT_RETRY_COUNT = $LAST && exit 0
exec sleep 600
"""

# Waits for a word; says how it began and ended.
GOES_ON = """
echo attempt $BT_RETRY_COUNT begins
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-0 && echo "[0]" > $BT_CHECKPOINT_DIR/checkpoint-0/state.json
until test -e $WORD/go; do sleep 0.1; done
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-1 && echo "[1]" > $BT_CHECKPOINT_DIR/checkpoint-1/state.json
echo attempt $BT_RETRY_COUNT ends
"""


def start(machine: Machine, script: str = TRAIN, **env: str) -> str:
    """A job whose first checkpoint is committed."""
    job_id = machine.push(machine.folder(script, env={"LAST": "1", **env}))["id"]
    committed(machine, job_id, "checkpoint-0")
    return job_id


def committed(machine: Machine, job_id: str, name: str) -> None:
    until(lambda: name in machine.checkpoints(job_id), seconds=60, what=f"{name} committed")


def check_resumed(machine: Machine, job_id: str, attempts: int = 2) -> None:
    """Each attempt found what the ones before had committed."""
    machine.wait(job_id, "COMPLETED", seconds=120)
    logs = machine.logs(job_id)
    names = [f"checkpoint-{number}" for number in range(attempts)]
    for number in range(1, attempts):
        assert f"attempt {number} finds {' '.join(names[:number])}" in logs
    assert machine.checkpoints(job_id) == names
    assert len(machine.view(job_id)["attempts"]) == attempts
    machine.nothing_left(job_id)


def kill(machine: Machine, job_id: str, *words: str) -> None:
    for pid in machine.job_processes(job_id):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if all(word in " ".join(process.cmdline()) for word in words):
                process.send_signal(signal.SIGKILL)


@pytest.mark.extended
def test_uploader_training_and_node_agent(machine: Machine) -> None:
    """One after the other: the first is replaced unnoticed, the others cost an attempt each."""
    job_id = start(machine, LAST="2")
    (uploader,) = machine.processes("prefect_bt.node_agent.upload_process", job_id)
    uploader.kill()
    folder = machine.state_dir / "jobs" / job_id / "rank-0" / "checkpoints" / "later"
    folder.mkdir()
    (folder / "state.json").write_text("[]")
    committed(machine, job_id, "later")
    assert len(machine.ledger.list_attempts(job_id)) == 1
    shutil.rmtree(folder)
    kill(machine, job_id, "sleep", "600")
    committed(machine, job_id, "checkpoint-1")
    kill(machine, job_id, "prefect_bt.node_agent")
    machine.wait(job_id, "COMPLETED", seconds=120)
    logs = machine.logs(job_id)
    assert "attempt 1 finds checkpoint-0" in logs
    assert "attempt 2 finds checkpoint-0 checkpoint-1" in logs
    statuses = [one["status"] for one in machine.view(job_id)["attempts"]]
    assert statuses == ["failed", "failed", "completed"]
    machine.nothing_left(job_id)


def check_went_on(machine: Machine, job_id: str) -> None:
    """The training noticed nothing: one attempt, one Prefect run."""
    machine.wait(job_id, "COMPLETED", seconds=120)
    job = machine.view(job_id)
    assert [attempt["status"] for attempt in job["attempts"]] == ["completed"]
    lines = re.findall(r"attempt \d+ \w+", machine.logs(job_id))
    assert lines == ["attempt 0 begins", "attempt 0 ends"]
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]
    assert len(machine.ledger.runs.list(job_id)) == 1
    machine.nothing_left(job_id)


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_flow_and_keeper(machine: Machine, tmp_path: Path, fails: bool) -> None:
    """A node's guard has a job without a supervisor taken up again, while no command looks at it.

    A supervisor starts its flow again, also when the flow fails at first; test_events.py has the
    plain case.
    """
    job_id = start(machine, GOES_ON, WORD=str(tmp_path))
    if fails:
        fail_once(machine, job_id)
    before = flows(machine, job_id)
    kill(machine, job_id, "prefect_bt.supervisor.process")
    kill(machine, job_id, "prefect_bt.supervisor.run_flow")
    until(lambda: runs(machine, job_id, but=before), seconds=60, what="a keeper and its flow")
    (tmp_path / "go").touch()
    check_went_on(machine, job_id)


def fail_once(machine: Machine, job_id: str) -> None:
    """Kill the flow, let the next one fail, and wait until a third one runs the job."""
    record = next((machine.root / "store").glob(f"**/{job_id}/job.json"))
    flow_log = machine.state_dir / "jobs" / job_id / "flow.log"
    aside = record.replace(record.with_name("aside"))
    kill(machine, job_id, "prefect_bt.supervisor.run_flow")
    until(lambda: "NotFoundError" in flow_log.read_text(), seconds=60, what="a flow to fail")
    aside.replace(record)
    until(lambda: runs(machine, job_id), seconds=60, what="a flow that does not fail")


def flows(machine: Machine, job_id: str) -> set[int]:
    return {process.pid for process in machine.processes("prefect_bt.supervisor.run_flow", job_id)}


def runs(machine: Machine, job_id: str, *, but: Set[int] = frozenset()) -> bool:
    return bool(flows(machine, job_id) - but) and is_owned(machine.state_dir, job_id)


def test_flow_between_the_jobs_end_and_the_runs(machine: Machine) -> None:
    """Prefect is told all the same: its run would seem to go on for ever."""
    job_id = machine.push(machine.folder("sleep 2\n"))["id"]
    until(lambda: machine.job_processes(job_id), seconds=60, what="the flow")
    there = machine.processes("prefect_bt.supervisor.run_flow", job_id)
    machine.wait(job_id, "COMPLETED")
    for flow in there:
        with suppress(psutil.NoSuchProcess):
            flow.kill()
    run = machine.ledger.runs.list(job_id)[-1].flow_run_id
    until(lambda: run_is(machine, run, "COMPLETED"), seconds=60, what="the run to end")
    machine.nothing_left(job_id)


@pytest.mark.extended
def test_every_process_at_once(machine: Machine) -> None:
    """As when the machine stops: nobody is left to notice, until somebody looks at the job."""
    job_id = start(machine)
    machine.kill_all(job_id)
    assert machine.view(job_id)["current_status"] != "TRAINING_JOB_FAILED"
    check_resumed(machine, job_id)


@pytest.mark.extended
@pytest.mark.parametrize("how", ["stop", "stop after a power failure", "cancelled in Prefect"])
def test_stop_of_a_job_that_nobody_runs(machine: Machine, how: str) -> None:
    job_id = start(machine)
    (run,) = machine.ledger.runs.list(job_id)
    if how == "stop after a power failure":  # so no guard of a node takes the job up
        machine.kill_all(job_id)
    kill(machine, job_id, "prefect_bt.supervisor.process")
    kill(machine, job_id, "prefect_bt.supervisor.run_flow")
    if how.startswith("stop"):
        machine.run("stop", "--job-id", job_id)
    else:
        set_state = f"flow_runs/{run.flow_run_id}/set_state"
        call(machine, "POST", set_state, state={"type": "CANCELLING"})
    machine.wait(job_id, "STOPPED")
    assert machine.checkpoints(job_id) == ["checkpoint-0"]
    assert len(machine.view(job_id)["attempts"]) == 1
    run_is(machine, run.flow_run_id, "CANCELLED")
    if how == "stop after a power failure":  # nobody saw that the folder holds nothing unsaved
        machine.run("gc", "--yes", "--include-unsaved")
    machine.nothing_left(job_id)
