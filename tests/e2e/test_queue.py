"""Jobs that wait until a machine has room for them, with the processes of users' commands."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from prefect_bt.jobs.starting.queued_runs import WaitReasons, create_job_run, queued_state
from prefect_bt.queue.leases import Leases

from .conftest import call, until
from .queue_machine import HOLDS, WAITS, Make, QueueMachine, make_machine, queue_machine, working

__all__ = ["make_machine", "queue_machine"]  # fixtures

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_the_second_of_two_jobs_for_all_the_memory_waits_without_a_process(
    queue_machine: QueueMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = queue_machine.start("first")
    told = queue_machine.run("push", str(queue_machine.config("second"))).stdout
    (row,) = queue_machine.rows()
    second = str(row["id"])
    assert f"Training job {second} is number 1 of the queue." in told
    assert "cache summarize" not in told, "it has no cache"
    assert (row["place"], row["priority"]) == (1, 0)
    assert " has 0 MiB of 4 GiB free; job " in row["waiting_for"]
    assert row["since"]
    assert queue_machine.view(second)["current_status"] == "TRAINING_JOB_PENDING"
    run_id = check_shown(queue_machine, second, row["waiting_for"], monkeypatch)
    until(lambda: not queue_machine.job_processes(second), seconds=5, what="no process of it")
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "second")
    for job_id in (first, second):
        queue_machine.wait(job_id, "COMPLETED")
    queue_machine.check_intervals("first", "second")
    assert queue_machine.wait_in_prefect(second, "Completed")["id"] == run_id
    queue_machine.check_idle()


def check_shown(
    machine: QueueMachine, job_id: str, waiting_for: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Check that Prefect has one run, which says what the job waits for; return the run's id."""
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_BT_STATE_DIR"):
        monkeypatch.setenv(name, machine.environment[name])
    if not machine.ledger.runs.list(job_id):  # a busy server did not answer the push
        until(lambda: shown(machine, job_id), seconds=60, what="the run of a waiting job")
    run = machine.wait_in_prefect(job_id, "AwaitingConcurrencySlot")
    assert run["state"]["type"] == "SCHEDULED"
    assert waiting_for in run["state"]["message"]

    def post(path: str, body: dict[str, Any]) -> Any:
        return call(machine, "POST", path.lstrip("/"), **body)

    # The process of a machine that starts the job meanwhile.
    record = machine.ledger.get_job(job_id)
    again = create_job_run(post, record, {"type": "PENDING", "name": "Pending"}, "train")
    assert (again["id"], again["state"]["name"]) == (run["id"], "AwaitingConcurrencySlot")
    post(f"/flow_runs/{run['id']}/set_state", {"state": queued_state("an old reason")})
    assert machine.run_in_prefect(job_id)["state"]["message"] == "Waits for an old reason"

    def refreshed() -> bool:
        WaitReasons(machine.ledger).update()
        message = machine.run_in_prefect(job_id)["state"]["message"]
        return message == f"Waits for {waiting_for}"

    until(refreshed, seconds=30, what=f"Waits for {waiting_for}")
    return run["id"]


def shown(machine: QueueMachine, job_id: str) -> bool:
    """Look at the queue as `worker` does; return whether Prefect has a run of the job."""
    WaitReasons(machine.ledger).update()
    return bool(machine.ledger.runs.list(job_id))


@pytest.mark.extended
def test_a_higher_priority_starts_first_then_the_older_job(queue_machine: QueueMachine) -> None:
    queue_machine.start("running")
    ids = {
        name: queue_machine.start(name, "--priority", priority)
        for name, priority in (("zero", "0"), ("five", "5"), ("one", "1"), ("young", "0"))
    }
    names = {job_id: name for name, job_id in ids.items()}
    assert [names[one] for one in queue_machine.queued()] == ["five", "one", "zero", "young"]
    change = ("update", "--job-id", ids["young"], "--priority", "9", "-o", "json")
    done = json.loads(queue_machine.run(*change).stdout)
    assert done["training_job"] == {"id": ids["young"], "priority": 9, "place": 1}
    assert queue_machine.view(ids["young"])["priority"] == 9
    assert [names[one] for one in queue_machine.queued()] == ["young", "five", "one", "zero"]
    queue_machine.wait_for_start("running")
    queue_machine.release("running", *ids)
    for job_id in ids.values():
        queue_machine.wait(job_id, "COMPLETED")
    queue_machine.check_intervals("running", "young", "five", "one", "zero")
    queue_machine.check_idle()


@pytest.mark.parametrize("at_once", [pytest.param(True, marks=pytest.mark.extended), False])
def test_stopped_and_cancelled_jobs_never_start(queue_machine: QueueMachine, at_once: bool) -> None:
    """At once: stop the job while a process still shows it in Prefect."""
    first = queue_machine.start("first")
    stopped = queue_machine.start("stopped", "--priority", "1")
    if not at_once:
        wait_without_process(queue_machine, stopped)
    queue_machine.run("stop", "--job-id", stopped)
    queue_machine.wait(stopped, "STOPPED")
    cancelled = queue_machine.start("cancelled")
    until(lambda: queue_machine.queued() == [cancelled], seconds=5, what="one job in the queue")
    run = queue_machine.wait_in_prefect(cancelled, "AwaitingConcurrencySlot")
    # As the UI's button does.
    call(queue_machine, "POST", f"flow_runs/{run['id']}/set_state", state={"type": "CANCELLING"})
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "stopped", "cancelled")
    queue_machine.wait(first, "COMPLETED")
    assert queue_machine.wait(cancelled, "STOPPED", "COMPLETED") == "TRAINING_JOB_STOPPED"
    queue_machine.check_intervals("first")
    for job_id in (stopped, cancelled):
        assert queue_machine.view(job_id)["attempts"] == []
        if queue_machine.ledger.runs.list(job_id):  # a job that is stopped at once can have none
            queue_machine.wait_in_prefect(job_id, "Cancelled")
    queue_machine.check_idle()


@pytest.mark.extended
def test_a_flow_waits_in_its_process(queue_machine: QueueMachine) -> None:
    queue_machine.start("first")

    def release() -> None:
        """Let the first job end once the flow's job waits."""
        ledger = queue_machine.ledger
        named = lambda: [one.id for one in ledger.list_jobs() if one.name == "second"]  # noqa: E731
        (job_id,) = until(named, seconds=60, what="the job of the flow")
        queue_machine.wait(job_id, "PENDING")
        queue_machine.wait_for_start("first")
        queue_machine.release("first", "second")

    with ThreadPoolExecutor() as pool:
        releasing = pool.submit(release)
        queue_machine.completed(queue_machine.config("second"))
        releasing.result()
    queue_machine.check_intervals("first", "second")
    queue_machine.check_idle()


SCRIPT = "from prefect_bt.flows.train import train; train({!r})"


@pytest.mark.extended
def test_a_script_that_is_interrupted_leaves_the_queue(queue_machine: QueueMachine) -> None:
    queue_machine.start("first")
    words = [sys.executable, "-c", SCRIPT.format(str(queue_machine.config("second")))]
    process = subprocess.Popen(words, env=queue_machine.environment, stdin=subprocess.DEVNULL)
    (job_id,) = until(queue_machine.queued, seconds=60, what="the job of the script")
    process.send_signal(signal.SIGINT)
    queue_machine.wait(job_id, "STOPPED")
    assert process.wait(600) != 0
    assert queue_machine.queued() == []
    queue_machine.release("first")


@pytest.mark.extended
def test_a_worker_ends_leases_of_dead_jobs_and_may_die(queue_machine: QueueMachine) -> None:
    # The worker can start the killed job again first; then the test kills that job twice.
    ids = [queue_machine.start(name, "--without-progress", "0") for name in ("first", "second")]
    first, second = ids
    queue_machine.wait_for_start("first")
    wait_without_process(queue_machine, second)
    with working(queue_machine) as worker:
        queue_machine.kill_all(first)
        until(lambda: len(queue_machine.starts()) == 2, seconds=60, what="another start")
        (lease,) = Leases(queue_machine.ledger.store).read()
        (waiting,) = [job_id for job_id in ids if job_id != lease.job.id]
        wait_without_process(queue_machine, waiting)
        worker.kill()
    queue_machine.kill_all(lease.job.id)
    assert queue_machine.queued() == [waiting]
    with working(queue_machine):
        queue_machine.release("first", "second")
        for job_id in ids:
            queue_machine.wait(job_id, "COMPLETED", seconds=60)
        queue_machine.check_idle()
    ends = [one.name for one in queue_machine.times() if one.word == "end"]
    assert sorted(ends) == ["first", "second"], "each job ended once"


def wait_without_process(machine: QueueMachine, job_id: str) -> None:
    machine.wait(job_id, "PENDING")
    machine.wait_in_prefect(job_id, "AwaitingConcurrencySlot")
    until(lambda: not machine.job_processes(job_id), seconds=10, what=f"no process of {job_id}")


# No lock: two machines have two GPUs.
SHORT = WAITS.replace('until test -e "$SHARED/go-$NAME"; do sleep 0.1; done', "sleep 2")


@pytest.mark.extended
def test_two_machines_share_the_jobs_of_one_queue(make_machine: Make) -> None:
    here, there = make_machine(gpus=1), make_machine(gpus=1, state="there")
    names = [f"job-{number}" for number in range(6)]
    with working(here), working(there):
        ids = {name: here.start(name, script=SHORT, gpus=1) for name in names}
        for job_id in ids.values():
            here.wait(job_id, "COMPLETED")
        here.check_idle()
    assert sorted(here.starts()) == names, "each job ran once"
    assert {len(here.ledger.list_attempts(job_id)) for job_id in ids.values()} == {1}
    runs = {name: here.ledger.runs.list(job_id) for name, job_id in ids.items()}
    assert {len(found) for found in runs.values()} == {1}, runs
    hosts = {name: found[0].host for name, found in runs.items()}
    assert len(set(hosts.values())) == 2
    for host in set(hosts.values()):
        spans = [one for one in here.times() if hosts[one.name] == host]
        assert [one.word for one in spans] == ["start", "end"] * (len(spans) // 2), spans
        assert all(one.name == other.name for one, other in list(pairwise(spans))[::2]), spans


@pytest.mark.extended
@pytest.mark.parametrize("end", ["FAILED", "STOPPED"])
def test_a_retry_waits_for_its_turn(queue_machine: QueueMachine, end: str) -> None:
    fails = "exit 3" if end == "FAILED" else "sleep 600"
    job_id = queue_machine.start("again", script=f"test $BT_RETRY_COUNT = 1 || {fails}\n{HOLDS}")
    if end == "STOPPED":
        queue_machine.wait(job_id, "RUNNING")
        queue_machine.run("stop", "--job-id", job_id)
    queue_machine.wait(job_id, end)
    first = queue_machine.start("first")
    done = queue_machine.run("retry", "--job-id", job_id, "-o", "json").stdout
    assert json.loads(done)["current_status"] == "TRAINING_JOB_PENDING"
    assert queue_machine.queued() == [job_id]
    until(lambda: not queue_machine.job_processes(job_id), seconds=5, what="no process of it")
    assert queue_machine.queued() == [job_id]
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "again")
    for one in (first, job_id):
        queue_machine.wait(one, "COMPLETED")
    queue_machine.check_intervals("first", "again")
    assert [one.attempt for one in queue_machine.times() if one.name == "again"] == [1, 1]
    attempts = queue_machine.view(job_id)["attempts"]
    assert [one["status"] for one in attempts] == [end.lower(), "completed"]
    queue_machine.run_in_prefect(job_id)
    queue_machine.check_idle()
