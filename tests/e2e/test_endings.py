"""Each way a job can end, state by state: the flow run, and the run of every task."""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefect_bt.blocks import RetryPolicy
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.object_keys import job_prefix

from .conftest import Machine, call, read_all, until
from .test_events import events, labels
from .test_python_api import python
from .test_worker import DEPLOYMENT, flow_processes_of, run_from_form, run_is

pytestmark = [pytest.mark.integration]

WAITS = "mkdir -p $BT_CHECKPOINT_DIR/c; echo 1 > $BT_CHECKPOINT_DIR/c/a; echo ready; sleep 600\n"
FAILS_ONCE = """
mkdir -p $BT_CHECKPOINT_DIR/c; echo 1 > $BT_CHECKPOINT_DIR/c/a
exit $((3 - 3 * BT_RETRY_COUNT))
"""
WHOLE = "Every complete checkpoint is committed."
COMMITTED = "All ranks exited with 0 and their checkpoints are committed."


def task_states(machine: Machine, run_id: str) -> dict[str, tuple[str, ...]]:
    """Return name, type and message of the state of each task run, by the task run's name.

    The server lists a task run for a moment before it has the task run's state.
    """
    filters = {"flow_runs": {"id": {"any_": [run_id]}}}
    tasks = call(machine, "POST", "task_runs/filter", **filters)
    return {
        re.sub("^(accept-job|training)-.*", r"\1", task["name"]): tuple(
            (task["state"] or {}).get(key) or "" for key in ("name", "type", "message")
        )
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


ACCEPTED = {"accept-job": ("Completed", "")}
UPLOADED = ("Completed", WHOLE)


def attempt(
    number: int,
    *ranks: tuple[str, str],
    itself: tuple[str, str],
    uploads: tuple[str, str] = UPLOADED,
) -> dict[str, Any]:
    """Return the states of one attempt's tasks: its own, those of its ranks and of the others."""
    found = {"": itself, " · provision": ("Completed", ""), " · upload checkpoints": uploads}
    found |= {f" · rank {rank}": one for rank, one in enumerate(ranks)}
    return {f"attempt {number}{name}": state for name, state in found.items()}


# Each rank sees the files of both in the cache, and its own checkpoint alone.
SHARES = """
echo $BT_NODE_RANK > $BT_PROJECT_CACHE_DIR/seen-$BT_NODE_RANK
mkdir -p $BT_CHECKPOINT_DIR/c; touch $BT_CHECKPOINT_DIR/c/rank-$BT_NODE_RANK
until [ $(ls $BT_PROJECT_CACHE_DIR/seen-* | wc -l) = 2 ]; do sleep 0.1; done
test $(ls $BT_CHECKPOINT_DIR/c | wc -l) = 1
"""


def test_completed(machine: Machine) -> None:
    job = machine.completed(machine.folder(SHARES, nodes=2, cache=True, project="shares"))
    exited = ("Completed", "Exited with 0.")
    one = attempt(0, exited, exited, itself=("Completed", COMMITTED))
    wanted = {**ACCEPTED, "training": ("Completed", ""), **one}
    check_tasks(machine, job["flow_run_id"], wanted)
    run_is(machine, job["flow_run_id"], "COMPLETED")
    assert machine.checkpoints(job["id"]) == ["c"]
    manifests = (machine.root / "store").glob(f"**/{job['id']}/**/manifests/rank-*/*")
    assert {path.parent.name for path in manifests} == {"rank-0", "rank-1"}
    machine.nothing_left(job["id"])


FAILS = """
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-7; echo 1 > $BT_CHECKPOINT_DIR/checkpoint-7/a
test $BT_NODE_RANK = 0 || { touch $WORD/saved; exec sleep 600; }
until test -e $WORD/saved; do sleep 0.1; done
exit 3
"""


def test_failed(machine: Machine, tmp_path: Path) -> None:
    """Look at all that Prefect shows of one job: states, messages, log, card and events."""
    commands = ["echo one", "sh ./run.sh", "echo three"]
    environment = {"WORD": str(tmp_path)}
    job = machine.train(machine.folder(FAILS, nodes=2, commands=commands, env=environment))
    assert job["current_status"] == "TRAINING_JOB_FAILED"
    said = "Rank 0 failed first"
    for words in (said, "start command 2 exited with 3"):
        assert words in job["error_message"]
    assert len(job["attempts"]) == 1
    assert machine.checkpoints(job["id"]) == ["checkpoint-7"]
    logs = machine.logs(job["id"])
    assert "(rank-0) one" in logs
    assert "three" not in logs
    ranks = (("Failed", "exited with 3"), ("Cancelled", "Ended"))
    one = attempt(0, *ranks, itself=("Failed", said))
    run_id = job["flow_run_id"]
    check_tasks(machine, run_id, {**ACCEPTED, "training": ("Failed", said), **one})
    run = run_is(machine, run_id, "FAILED")
    assert job["id"] in run["name"]
    assert run["state"]["message"].startswith(said)
    lines = "\n".join(log_lines(machine, run_id))
    for words in ("NoneType: None", "Traceback", "will start"):
        assert words not in lines
    wanted = {"key": {"any_": [f"job-{job['id']}"]}}
    (card,) = call(machine, "POST", "artifacts/latest/filter", artifacts=wanted)
    for words in ("## Attempts", "## Definition", "| checkpoint-7 |"):
        assert words in card["data"]
    check_events(machine, job)
    machine.nothing_left(job["id"])


def check_events(machine: Machine, job: dict[str, Any]) -> None:
    """Check that automations learn the cause of the failure and the newest checkpoint."""
    found = events(machine, job["id"], "job.failed")
    always = {"job": job["id"], "kind": "training", "project": "e2e"}
    always["store"] = machine.ledger.store.url
    saved = {"checkpoint": "checkpoint-7", "step": "7"}
    assert labels(found, "job.deploying") == [{**always, "attempt": "0"}]
    assert len(labels(found, "job.running")) == 1
    committed = sorted(labels(found, "checkpoint.committed"), key=lambda one: one["rank"])
    assert committed == [{**always, **saved, "attempt": "0", "rank": rank} for rank in ("0", "1")]
    assert labels(found, "job.failed") == [
        {**always, **saved, "attempt": "0", "failure-class": "user", "cause": "command_failed"}
    ]
    run = {
        "prefect.resource.id": f"prefect.flow-run.{job['flow_run_id']}",
        "prefect.resource.role": "flow-run",
    }
    for event in found:
        assert any(run.items() <= related.items() for related in event["related"]), event


def test_retried_then_completed(machine: Machine) -> None:
    policy = RetryPolicy(user=1, first_delay_seconds=2, jitter=0)
    job = machine.completed(machine.folder(FAILS_ONCE), retry_policy=policy)
    first = attempt(0, ("Failed", "exited with 3"), itself=("Failed", "Rank 0 failed"))
    second = attempt(1, ("Completed", "Exited with 0."), itself=("Completed", COMMITTED))
    run_id = run_of(machine, job["id"])
    check_tasks(machine, run_id, {**ACCEPTED, "training": ("Completed", ""), **first, **second})
    words = "will start 2.0 second(s) from now"

    def said() -> bool:
        return any(words in line for line in log_lines(machine, run_id))

    until(said, seconds=2, what=lambda: "\n".join([words, *log_lines(machine, run_id)]))
    waited = awaited_retries(machine, run_id)
    assert [state["name"] for state in waited] == ["AwaitingRetry"]
    assert waited[0]["state_details"]["scheduled_time"] > waited[0]["timestamp"]


STOPPED = """
setsid sh -c 'trap "" TERM; exec sleep 611' >/dev/null 2>&1 </dev/null &
save() { mkdir -p $BT_CHECKPOINT_DIR/$1; echo "{}" > $BT_CHECKPOINT_DIR/$1/a.json; sleep $2
         echo "{}" > $BT_CHECKPOINT_DIR/$1/b.json; }
trap 'save checkpoint-2 1; exit 1' TERM
save checkpoint-1 0
while :; do sleep 0.1; done
"""


def test_stopped_by_command(machine: Machine) -> None:
    """The last checkpoint is committed. A child of the command that has left its session and
    ignores SIGTERM is ended; processes of others are not."""
    bystander = psutil.Popen(["sleep", "1200"], start_new_session=True)
    try:
        job_id = machine.push(machine.folder(STOPPED), PREFECT_BT_GRACE="12")["id"]
        until(lambda: machine.view(job_id)["checkpoints"], seconds=60, what="checkpoint-1")

        def begun() -> bool:
            pids = machine.job_processes(job_id)
            told = [read_all(Path(f"/proc/{pid}/cmdline")).split("\0") for pid in pids]
            return ["sleep", "611", ""] in told

        until(begun, seconds=60, what="the child")
        machine.run("stop", "--job-id", job_id)
        machine.wait(job_id, "STOPPED")
        assert bystander.is_running()
    finally:
        bystander.kill()
        bystander.wait()
    check_stopped(machine, run_of(machine, job_id))
    project_id = machine.ledger.get_job(job_id).project_id
    newest = list_checkpoints(machine.ledger.store, project_id, job_id)[-1]
    assert [file.path for file in newest.files()] == ["checkpoint-2/a.json", "checkpoint-2/b.json"]
    machine.nothing_left(job_id)
    second = machine.run("stop", "--job-id", job_id, check=False)
    assert (second.returncode, "already" in second.stderr) == (1, True), second.stderr


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
    used.nothing_left(job_id)


def check_stopped(machine: Machine, run_id: str) -> None:
    run_is(machine, run_id, "CANCELLED")
    stopped = ("Cancelled", "Stopped")
    one = attempt(0, ("Cancelled", ""), itself=stopped)
    seen = task_states(machine, run_id)
    if "attempt 0 · upload checkpoints" not in seen:  # an interrupt ends the watch before it
        del one["attempt 0 · upload checkpoints"]
    check_tasks(machine, run_id, {**ACCEPTED, "training": stopped, **one})
    assert not any("Crash detected" in line for line in log_lines(machine, run_id))


@pytest.mark.parametrize(
    "wrong", ["definition", pytest.param("substrate", marks=pytest.mark.extended)]
)
def test_failed_runs_log_no_traceback(
    machine: Machine, served_machine: Machine, wrong: str
) -> None:
    """A refused form, of a run that the worker started."""
    given: dict[str, Any] = {"definition": {"name": "refused", "job": {}}}
    if wrong == "substrate":
        given = {"config": str(served_machine.folder("exit 3\n")), "substrate": "moon"}
    run_id = run_from_form(served_machine, given)
    run = run_is(served_machine, run_id, "FAILED")
    said = {"definition": "image", "substrate": "moon"}[wrong]
    assert said in run["state"]["message"]
    check_tasks(served_machine, run_id, {"accept-job": ("Failed", said)})

    def is_over() -> bool:
        lines = log_lines(served_machine, run_id)
        return sum("Finished in state Failed" in line for line in lines) >= 2

    until(is_over, seconds=20, what=lambda: "\n".join(log_lines(served_machine, run_id)))
    # The process sends its last lines, a traceback too, before it ends.
    until(lambda: not flow_processes_of(run_id), seconds=60, what="the end of the flow's process")
    lines = log_lines(served_machine, run_id)
    assert not any("Traceback" in line or "NoneType" in line for line in lines), lines
    assert len(lines) < 15, lines


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
    job_id = machine.push(config, PREFECT_BT_UPLOAD_REPEAT_DELAYS="none")["id"]
    machine.wait(job_id, "RUNNING")
    prefix = job_prefix(machine.ledger.get_job(job_id).project_id, job_id)
    for name in ("manifests", "objects"):
        (machine.root / "store" / prefix / name).touch()
    (word / "go").touch()
    machine.wait(job_id, "FAILED", seconds=300)
    # What could not be committed is kept; other tests of this machine count what is left.
    until(lambda: not machine.job_processes(job_id), seconds=30, what="no process left")
    shutil.rmtree(machine.state_dir / "jobs" / job_id)
    assert len(machine.ledger.list_attempts(job_id)) == 1, "its commands had succeeded"
    said = "an upload did not"
    uploads = ("Failed", "Not committed: rank 0")
    one = attempt(0, ("Completed", "Exited with 0."), itself=("Failed", said), uploads=uploads)
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
