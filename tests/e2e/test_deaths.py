"""The death of any process: nothing committed is lost, nothing goes on unowned."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress

import psutil
import pytest

from prefect_bt.checkpoints.catalogue import list_checkpoints
from prefect_bt.ownership import is_owned

from .conftest import Machine, until
from .test_worker import call, run_is

pytestmark = [pytest.mark.integration]

# Each attempt says what it finds, commits one checkpoint, then waits; the second one ends well.
TRAIN = """
echo attempt $BT_RETRY_COUNT finds $(ls $BT_CHECKPOINT_DIR | tr '\\n' ' ')
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT
echo "[$BT_RETRY_COUNT]" > $BT_CHECKPOINT_DIR/checkpoint-$BT_RETRY_COUNT/state.json
test $BT_RETRY_COUNT = 0 || exit 0
exec sleep 600
"""


def committed(machine: Machine, job_id: str) -> bool:
    return "checkpoint-0" in machine.checkpoints(job_id)


# Ends well by itself, some seconds after its first checkpoint.
GOES_ON = """
echo attempt $BT_RETRY_COUNT begins
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-0 && echo "[0]" > $BT_CHECKPOINT_DIR/checkpoint-0/state.json
for i in $(seq 100); do sleep 0.1; done
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-1 && echo "[1]" > $BT_CHECKPOINT_DIR/checkpoint-1/state.json
echo attempt $BT_RETRY_COUNT ends
"""


def start(machine: Machine, script: str = TRAIN) -> str:
    job_id = machine.push(machine.folder(script))["id"]
    until(lambda: committed(machine, job_id), seconds=60, what="first checkpoint committed")
    return job_id


def check_resumed(machine: Machine, job_id: str) -> None:
    machine.wait(job_id, "COMPLETED", seconds=120)
    logs = machine.logs(job_id)
    assert "attempt 1 finds checkpoint-0" in logs
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]
    assert len(machine.view(job_id)["attempts"]) == 2
    machine.nothing_left(job_id)


def kill(machine: Machine, job_id: str, *words: str) -> None:
    for pid in machine.job_processes(job_id):
        try:
            process = psutil.Process(pid)
            if all(word in " ".join(process.cmdline()) for word in words):
                process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def test_training_process(machine: Machine) -> None:
    job_id = start(machine)
    kill(machine, job_id, "sleep", "600")
    check_resumed(machine, job_id)


def test_node_agent(machine: Machine) -> None:
    job_id = start(machine)
    kill(machine, job_id, "prefect_bt.node")
    check_resumed(machine, job_id)


def check_went_on(machine: Machine, job_id: str) -> None:
    """The training noticed nothing: one attempt, one Prefect run."""
    machine.wait(job_id, "COMPLETED", seconds=120)
    job = machine.view(job_id)
    assert [attempt["status"] for attempt in job["attempts"]] == ["completed"]
    assert re.findall(r"attempt \d+ \w+", machine.logs(job_id)) == [
        "attempt 0 begins",
        "attempt 0 ends",
    ]
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]
    assert len(machine.ledger.runs_of_job(job_id)) == 1
    machine.nothing_left(job_id)


def test_flow(machine: Machine) -> None:
    job_id = start(machine, GOES_ON)
    kill(machine, job_id, "prefect_bt.flows.run_job")
    check_went_on(machine, job_id)


def test_keeper_and_flow(machine: Machine) -> None:
    """A node's guard has the job taken up again; nobody looks at it meanwhile."""
    job_id = start(machine, GOES_ON)
    kill(machine, job_id, "prefect_bt.flows.keeper")
    kill(machine, job_id, "prefect_bt.flows.run_job")
    check_went_on(machine, job_id)


def test_flow_while_the_record_cannot_be_read(machine: Machine) -> None:
    """What takes the job up fails once or twice; the gang is not ended for that."""
    job_id = start(machine, GOES_ON)
    record = next((machine.root / "store").glob(f"**/{job_id}/job.json"))
    flow_log = machine.state_dir / "jobs" / job_id / "flow.log"
    aside = record.replace(record.with_name("aside"))
    kill(machine, job_id, "prefect_bt.flows.run_job")
    until(lambda: "NotFoundError" in flow_log.read_text(), seconds=60, what="a flow to fail")
    aside.replace(record)
    check_went_on(machine, job_id)


def test_flow_between_the_jobs_end_and_the_runs(machine: Machine) -> None:
    """Prefect is told all the same: its run would seem to go on for ever."""
    job_id = machine.push(machine.folder("sleep 2\n"))["id"]
    until(lambda: machine.job_processes(job_id), seconds=60, what="the flow")
    flows = machine.processes("prefect_bt.flows.run_job", job_id)
    machine.wait(job_id, "COMPLETED")
    for flow in flows:
        with suppress(psutil.NoSuchProcess):
            flow.kill()
    run = machine.ledger.runs_of_job(job_id)[-1].flow_run_id
    until(lambda: run_is(machine, run, "COMPLETED"), seconds=60, what="the run to end")
    machine.nothing_left(job_id)


def looked_after(machine: Machine, job_id: str) -> bool:
    return is_owned(machine.state_dir, job_id) or machine.ledger.state(job_id).terminal


def test_keeper_and_flow_again_and_again(machine: Machine) -> None:
    job_id = start(machine, GOES_ON)
    for _ in range(2):
        kill(machine, job_id, "prefect_bt.flows.keeper")
        kill(machine, job_id, "prefect_bt.flows.run_job")
        until(lambda: looked_after(machine, job_id), seconds=60, what="a keeper to come back")
    check_went_on(machine, job_id)


def test_uploader_is_replaced_and_training_does_not_notice(machine: Machine) -> None:
    script = """
    for i in 1 2 3 4 5 6; do
      mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$i
      echo "[$i]" > $BT_CHECKPOINT_DIR/checkpoint-$i/a.json
      sleep 0.7
    done
    """
    job_id = machine.push(machine.folder(script))["id"]
    until(lambda: machine.checkpoints(job_id), seconds=60, what="a commit")
    kill(machine, job_id, "prefect_bt.node.upload")
    machine.wait(job_id, "COMPLETED")
    assert machine.checkpoints(job_id) == [f"checkpoint-{i}" for i in range(1, 7)]
    assert len(machine.view(job_id)["attempts"]) == 1


def test_every_process_at_once(machine: Machine) -> None:
    """As when the machine stops: nobody is left to notice, until somebody looks at the job."""
    job_id = start(machine)
    for pid in machine.job_processes(job_id):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not machine.job_processes(job_id), seconds=10, what="all of them to be gone")
    assert machine.view(job_id)["current_status"] != "TRAINING_JOB_FAILED"
    check_resumed(machine, job_id)


def test_stop_of_a_job_that_nobody_runs(machine: Machine) -> None:
    job_id = start(machine)
    kill(machine, job_id, "prefect_bt.flows.keeper")
    kill(machine, job_id, "prefect_bt.flows.run_job")
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    assert machine.checkpoints(job_id) == ["checkpoint-0"]
    machine.nothing_left(job_id)


def test_cancelled_in_prefect_while_nobody_runs_it(machine: Machine) -> None:
    job_id = start(machine)
    (run,) = machine.ledger.runs_of_job(job_id)
    kill(machine, job_id, "prefect_bt.flows.keeper")
    kill(machine, job_id, "prefect_bt.flows.run_job")
    set_state = f"flow_runs/{run.flow_run_id}/set_state"
    call(machine, "POST", set_state, state={"type": "CANCELLING"})
    machine.wait(job_id, "STOPPED")
    assert len(machine.view(job_id)["attempts"]) == 1
    run_is(machine, run.flow_run_id, "CANCELLED")
    machine.nothing_left(job_id)


def test_stop_takes_the_checkpoint_along(machine: Machine) -> None:
    script = """
    trap 'mkdir -p $BT_CHECKPOINT_DIR/last; echo "{}" > $BT_CHECKPOINT_DIR/last/a.json; exit 0' TERM
    echo ready; while :; do sleep 0.1; done
    """
    job_id = machine.push(machine.folder(script))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    assert machine.checkpoints(job_id) == ["last"]
    machine.nothing_left(job_id)
    second = machine.run("stop", "--job-id", job_id, check=False)
    assert second.returncode == 1
    assert "already" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_stop_waits_for_as_long_as_a_checkpoint_takes(machine: Machine) -> None:
    """Its grace is 5 s; the last checkpoint takes 6 s to write, and the one before took as long."""
    script = """
    save() { mkdir -p $BT_CHECKPOINT_DIR/$1; echo "{}" > $BT_CHECKPOINT_DIR/$1/a.json; sleep $2
             echo "{}" > $BT_CHECKPOINT_DIR/$1/b.json; }
    trap 'save checkpoint-2 6; exit 0' TERM
    save checkpoint-1 6; echo ready; while :; do sleep 0.1; done
    """
    job_id = machine.push(machine.folder(script))["id"]

    def known() -> bool:
        found = machine.view(job_id)["last_save"]
        return found is not None and found["write"] > 5.9  # stamps are some milliseconds coarse

    until(known, seconds=60, what="the first checkpoint's time")
    assert machine.view(job_id)["last_save"]["grace"] > 7
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    record = machine.ledger.job(job_id)
    newest = list_checkpoints(machine.ledger.store, record.project_id, job_id)[-1]
    assert newest.checkpoint_id == "checkpoint-2"
    assert [file.path for file in newest.files()] == ["checkpoint-2/a.json", "checkpoint-2/b.json"]
    machine.nothing_left(job_id)


def test_stop_of_a_daemonised_child_that_ignores_sigterm(machine: Machine) -> None:
    script = """
    setsid sh -c 'trap "" TERM; exec sleep 611' >/dev/null 2>&1 </dev/null &
    echo ready; sleep 600
    """
    job_id = machine.push(machine.folder(script))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)


def test_job_is_over_only_when_its_log_is_in_the_store(machine: Machine) -> None:
    job_id = machine.push(machine.folder("seq 1 20000\n"))["id"]
    machine.wait(job_id, "COMPLETED")
    log = next((machine.root / "store").glob(f"**/{job_id}/attempts/0000/logs/rank-0.log"))
    numbers = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    assert [n for n in numbers if n.isdigit()] == [str(n) for n in range(1, 20001)]


def test_processes_of_others_are_left_alone(machine: Machine) -> None:
    bystander = psutil.Popen(["sleep", "300"], start_new_session=True)
    try:
        job_id = start(machine)
        machine.run("stop", "--job-id", job_id)
        machine.wait(job_id, "STOPPED")
        assert bystander.is_running()
    finally:
        bystander.kill()
        bystander.wait()
