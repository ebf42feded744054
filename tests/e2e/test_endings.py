"""Each way a job can end, state by state: the flow run, and the run of every task."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Any

import pytest

from prefect_bt.object_keys import job_prefix

from .conftest import Machine, call, until
from .test_python_api import python
from .test_retry import flow_processes
from .test_worker import DEPLOYMENT, run_from_form, run_is

pytestmark = [pytest.mark.integration]

WAITS = "mkdir -p $BT_CHECKPOINT_DIR/c; echo 1 > $BT_CHECKPOINT_DIR/c/a; echo ready; sleep 600\n"
FAILS_ONCE = """
mkdir -p $BT_CHECKPOINT_DIR/c; echo 1 > $BT_CHECKPOINT_DIR/c/a
exit $((3 - 3 * BT_RETRY_COUNT))
"""
WHOLE = "Every complete checkpoint is committed."
COMMITTED = "All ranks exited with 0 and their checkpoints are committed."


def task_states(machine: Machine, run_id: str) -> dict[str, tuple[str, str, str]]:
    """Return name, type and message of the state of each task run, by the task run's name.

    The server lists a task run for a moment before it has the task run's state.
    """
    filters = {"flow_runs": {"id": {"any_": [run_id]}}}
    tasks = call(machine, "POST", "task_runs/filter", **filters)
    return {
        task["name"].rpartition("-")[0]
        if task["name"].startswith(("accept", "training"))
        else task["name"]: (
            task["state"]["name"],
            task["state"]["type"],
            task["state"]["message"] or "",
        )
        if task["state"]
        else ("", "", "")
        for task in sorted(tasks, key=lambda task: task["expected_start_time"])
    }


def check_tasks(machine: Machine, run_id: str, wanted: dict[str, tuple[str, str]]) -> None:
    """Wait until the task runs are those wanted, each in its state and with words of its message.

    Prefect makes task runs of events, which can arrive after the end of the flow run.
    """

    def matches() -> bool:
        seen = task_states(machine, run_id)
        return set(seen) == set(wanted) and all(
            seen[name][0] == state and words in seen[name][2]
            for name, (state, words) in wanted.items()
        )

    until(matches, seconds=30, what=lambda: f"{wanted}, but {task_states(machine, run_id)}")
    types = {"Completed": "COMPLETED", "Failed": "FAILED", "Cancelled": "CANCELLED"}
    for name, (state, kind, _) in task_states(machine, run_id).items():
        assert kind == types.get(state, "CRASHED"), name


def run_of(machine: Machine, job_id: str) -> str:
    return machine.ledger.runs.list(job_id)[-1].flow_run_id


def attempt(number: int, *ranks: tuple[str, str], **others: tuple[str, str]) -> dict[str, Any]:
    """Return the states of one attempt's tasks: its own, those of its ranks and of the others."""
    names = {"provision": "provision", "uploads": "upload checkpoints"}
    found = {f"attempt {number}": others.pop("itself")}
    found |= {f"attempt {number} · {names[key]}": value for key, value in others.items()}
    return found | {f"attempt {number} · rank {rank}": one for rank, one in enumerate(ranks)}


ACCEPTED = {"accept-job": ("Completed", "")}
PROVISIONED = ("Completed", "")


def test_completed(machine: Machine) -> None:
    job = machine.completed(machine.folder("true\n", nodes=2))
    exited = ("Completed", "Exited with 0.")
    one = attempt(
        0,
        exited,
        exited,
        itself=("Completed", COMMITTED),
        provision=PROVISIONED,
        uploads=("Completed", WHOLE),
    )
    wanted = {**ACCEPTED, "training": ("Completed", ""), **one}
    check_tasks(machine, job["flow_run_id"], wanted)
    run_is(machine, job["flow_run_id"], "COMPLETED")


def test_failed_rank_and_no_word_about_retries(machine: Machine) -> None:
    script = "test $BT_NODE_RANK = 0 && exit 3; sleep 600\n"
    _, job = machine.finish(machine.folder(script, nodes=2))
    said = "Rank 0 failed first"
    one = attempt(
        0,
        ("Failed", "exited with 3"),
        ("Cancelled", "Ended"),
        itself=("Failed", said),
        provision=PROVISIONED,
        uploads=("Completed", WHOLE),
    )
    run_id = job["flow_run_id"]
    check_tasks(machine, run_id, {**ACCEPTED, "training": ("Failed", said), **one})
    run = run_is(machine, run_id, "FAILED")
    assert run["state"]["message"].startswith(said)
    lines = "\n".join(log_lines(machine, run_id))
    assert "NoneType: None" not in lines
    assert "Traceback" not in lines
    assert "will start" not in lines


def test_retried_then_completed(machine: Machine) -> None:
    options = ("--retries", "1", "--retry-delay", "2", "--retry-jitter", "0")
    code, job = machine.push_wait(machine.folder(FAILS_ONCE), *options)
    assert code == 0
    first = attempt(
        0,
        ("Failed", "exited with 3"),
        itself=("Failed", "Rank 0 failed"),
        provision=PROVISIONED,
        uploads=("Completed", WHOLE),
    )
    second = attempt(
        1,
        ("Completed", "Exited with 0."),
        itself=("Completed", COMMITTED),
        provision=PROVISIONED,
        uploads=("Completed", WHOLE),
    )
    run_id = run_of(machine, job["id"])
    check_tasks(machine, run_id, {**ACCEPTED, "training": ("Completed", ""), **first, **second})
    words = "Retry 1/5 will start 2.0 second(s) from now"

    def said() -> bool:
        return any(words in line for line in log_lines(machine, run_id))

    until(said, seconds=2, what=lambda: "\n".join([words, *log_lines(machine, run_id)]))
    waited = awaited_retries(machine, run_id)
    assert [state["name"] for state in waited] == ["AwaitingRetry"]
    assert waited[0]["state_details"]["scheduled_time"] > waited[0]["timestamp"]


def test_stopped_by_command(machine: Machine) -> None:
    job_id = machine.push(machine.folder(WAITS))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    check_stopped(machine, run_of(machine, job_id))


def test_stopped_while_a_retry_is_awaited(machine: Machine) -> None:
    options = ("--retries", "1", "--retry-delay", "900")
    job_id = machine.push(machine.folder("exit 3\n"), *options)["id"]
    until(lambda: machine.ledger.list_outcomes(job_id), seconds=60, what="the first attempt's end")
    run_id = run_of(machine, job_id)
    until(lambda: awaited_retries(machine, run_id), seconds=20, what="AwaitingRetry")
    machine.run("stop", "--job-id", job_id)
    check_stopped_in_delay(machine, job_id, run_id)


def check_stopped_in_delay(machine: Machine, job_id: str, run_id: str) -> None:
    machine.wait(job_id, "STOPPED", seconds=20)
    run_is(machine, run_id, "CANCELLED")
    until(
        lambda: task_states(machine, run_id)["training"][0] == "Cancelled",
        seconds=20,
        what=lambda: f"{task_states(machine, run_id)}",
    )
    machine.nothing_left(job_id)


@pytest.mark.extended
def test_interrupted_while_a_retry_is_awaited(machine: Machine) -> None:
    config = machine.folder("exit 3\n", project="interrupted delay")
    source = f"""
    from prefect_bt.blocks import RetryPolicy
    from prefect_bt.flows.train import train
    policy = RetryPolicy(user=1, first_delay_seconds=900, longest_delay_seconds=900)
    train({str(config)!r}, retry_policy=policy)
    """
    process = python(machine, source)
    (job_id,) = until(lambda: machine.jobs_of("interrupted delay"), seconds=60, what="the job")
    until(lambda: machine.ledger.list_outcomes(job_id), seconds=60, what="the first attempt's end")
    run_id = run_of(machine, job_id)
    until(lambda: awaited_retries(machine, run_id), seconds=20, what="AwaitingRetry")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert err.rstrip().endswith("KeyboardInterrupt")
    check_stopped_in_delay(machine, job_id, run_id)


@pytest.mark.parametrize("where", [(), DEPLOYMENT], ids=["by itself", "worker"])
def test_cancelled_in_the_ui(machine: Machine, served_machine: Machine, where: tuple[str]) -> None:
    used = served_machine if where else machine
    job_id = used.push(used.folder(WAITS), *where)["id"]
    until(lambda: "ready" in used.logs(job_id), seconds=60, what="ready")
    run_id = run_of(used, job_id)
    call(used, "POST", f"flow_runs/{run_id}/set_state", state={"type": "CANCELLING"})
    used.wait(job_id, "STOPPED")
    check_stopped(used, run_id)


def check_stopped(machine: Machine, run_id: str) -> None:
    run_is(machine, run_id, "CANCELLED")
    stopped = ("Cancelled", "Stopped")
    one = attempt(
        0, ("Cancelled", ""), itself=stopped, provision=PROVISIONED, uploads=("Completed", WHOLE)
    )
    seen = task_states(machine, run_id)
    if "attempt 0 · upload checkpoints" not in seen:  # an interrupt ends the watch before it
        del one["attempt 0 · upload checkpoints"]
    check_tasks(machine, run_id, {**ACCEPTED, "training": stopped, **one})
    assert not any("Crash detected" in line for line in log_lines(machine, run_id))


def test_crashed_flow(machine: Machine) -> None:
    job_id = machine.push(machine.folder(WAITS))["id"]
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    first = flow_processes(machine, job_id)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    until(lambda: flow_processes(machine, job_id) - first, seconds=30, what="another flow process")
    run_id = run_of(machine, job_id)

    def crashed() -> bool:
        """All that ran in the dead process, and the same again in the new one."""
        filters = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = call(machine, "POST", "task_runs/filter", **filters)
        names = sorted(t["name"] for t in tasks if t["state_type"] == "CRASHED")
        running = sorted(t["name"] for t in tasks if t["state_type"] == "RUNNING")
        return (
            [name.partition("-")[0] for name in names]
            == [name.partition("-")[0] for name in running]
            == ["attempt 0", "attempt 0 · rank 0", "training"]
        )

    until(crashed, seconds=30, what=lambda: f"{task_states(machine, run_id)}")
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    run_is(machine, run_id, "CANCELLED")


@pytest.mark.parametrize("wrong", ["definition", "script", "substrate"])
def test_a_failed_run_logs_no_traceback(
    machine: Machine, served_machine: Machine, wrong: str
) -> None:
    """A refused form, and a failed rank, of a run that the worker started."""
    given: dict[str, Any] = {"config": str(served_machine.folder("exit 3\n"))}
    if wrong == "definition":
        given = {"definition": {"name": "refused", "job": {}}}
    elif wrong == "substrate":
        given["substrate"] = "moon"
    run_id = run_from_form(served_machine, given)
    run = run_is(served_machine, run_id, "FAILED")
    said = {"definition": "image", "substrate": "moon", "script": "Rank 0 failed first"}[wrong]
    assert said in run["state"]["message"]
    if wrong != "script":
        check_tasks(served_machine, run_id, {"accept-job": ("Failed", said)})

    def is_over() -> bool:
        lines = log_lines(served_machine, run_id)
        return sum("Finished in state Failed" in line for line in lines) >= 2

    until(is_over, seconds=20, what=lambda: "\n".join(log_lines(served_machine, run_id)))
    time.sleep(5)  # in which Prefect would send a traceback
    lines = log_lines(served_machine, run_id)
    assert not any("Traceback" in line or "NoneType" in line for line in lines), lines
    assert wrong == "script" or len(lines) < 15, lines


@pytest.mark.extended
def test_upload_that_failed(machine: Machine) -> None:
    """Files stand in the store where the folders of checkpoints would be.

    The uploader tries again until nothing has moved for two minutes.
    """
    script = (
        "until test -e $WORD/go; do sleep 0.1; done; cd $BT_CHECKPOINT_DIR; mkdir c; echo 1 > c/a\n"
    )
    word = machine.root / "word"
    word.mkdir()
    config = machine.folder(script, env={"WORD": str(word)})
    job_id = machine.push(config, "--infrastructure-retries", "0")["id"]
    machine.wait(job_id, "RUNNING")
    prefix = job_prefix(machine.ledger.get_job(job_id).project_id, job_id)
    for name in ("manifests", "objects"):
        (machine.root / "store" / prefix / name).touch()
    (word / "go").touch()
    machine.wait(job_id, "FAILED", seconds=300)
    # What could not be committed is kept; other tests of this machine count what is left.
    until(lambda: not machine.job_processes(job_id), seconds=30, what="no process left")
    shutil.rmtree(machine.state_dir / "jobs" / job_id)
    said = "an upload did not"
    one = attempt(
        0,
        ("Completed", "Exited with 0."),
        itself=("Failed", said),
        provision=PROVISIONED,
        uploads=("Failed", "Not committed: rank 0"),
    )
    run_id = run_of(machine, job_id)
    check_tasks(machine, run_id, {**ACCEPTED, "training": ("Failed", said), **one})
    run_is(machine, run_id, "FAILED")


def awaited_retries(machine: Machine, run_id: str) -> list[Any]:
    """Return the states of the task `training` in which it waited for its retry."""
    filters = {
        "flow_runs": {"id": {"any_": [run_id]}},
        "task_runs": {"name": {"like_": "training"}},
    }
    (task,) = call(machine, "POST", "task_runs/filter", **filters) or [None]
    if task is None:
        return []
    states = call(machine, "GET", f"task_run_states/?task_run_id={task['id']}")
    return [state for state in states if state["name"] == "AwaitingRetry"]


def log_lines(machine: Machine, run_id: str) -> list[str]:
    found = call(machine, "POST", "logs/filter", logs={"flow_run_id": {"any_": [run_id]}})
    return [line for log in found for line in log["message"].splitlines()]
