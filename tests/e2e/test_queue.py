"""Jobs that wait until a machine has room for them, with the processes of users' commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from prefect_bt.capacity.leases import Leases
from prefect_bt.jobs.queue.queued_runs import WaitReasons, create_job_run, queued_state

from .conftest import call, until
from .queue_machine import HOLDS, Make, QueueMachine, make_machine, queue_machine, working

__all__ = ["make_machine", "queue_machine"]  # fixtures

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_the_second_of_two_jobs_for_all_the_memory_waits_without_a_process(
    queue_machine: QueueMachine,
) -> None:
    first = queue_machine.start("first")
    told = queue_machine.run("push", str(queue_machine.config("second"))).stdout
    (row,) = queue_machine.rows()
    second = str(row["id"])
    assert f"Training job {second} is number 1 of the queue." in told
    assert (row["place"], row["priority"]) == (1, 0)
    assert row["waiting_for"].startswith("4 GiB of memory: 0 ")
    assert row["since"]
    assert queue_machine.view(second)["current_status"] == "TRAINING_JOB_PENDING"
    waiting = queue_machine.wait_in_prefect(second, "AwaitingConcurrencySlot")
    assert waiting["state"]["type"] == "SCHEDULED"
    assert row["waiting_for"] in waiting["state"]["message"]
    until(lambda: not queue_machine.job_processes(second), seconds=5, what="no process of it")
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "second")
    for job_id in (first, second):
        queue_machine.wait(job_id, "COMPLETED")
    queue_machine.check_intervals("first", "second")
    assert queue_machine.wait_in_prefect(second, "Completed")["id"] == waiting["id"]
    queue_machine.check_idle()


def shown(machine: QueueMachine, job_id: str) -> bool:
    """Look at the queue as `worker` does; return whether Prefect has a run of the job."""
    WaitReasons().poll(machine.ledger)
    return bool(machine.ledger.runs.list(job_id))


def test_prefect_shows_one_run_with_what_the_job_waits_for_now(
    queue_machine: QueueMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_machine.start("first")
    second = queue_machine.start("second")
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_BT_STATE_DIR"):
        monkeypatch.setenv(name, queue_machine.environment[name])
    record = queue_machine.ledger.get_job(second)
    if not queue_machine.ledger.runs.list(second):  # a busy server did not answer the push
        until(lambda: shown(queue_machine, second), seconds=60, what="the run of a waiting job")
    run = queue_machine.wait_in_prefect(second, "AwaitingConcurrencySlot")

    def post(path: str, body: dict[str, Any]) -> Any:
        return call(queue_machine, "POST", path.lstrip("/"), **body)

    # The process of a machine that starts the job meanwhile.
    again = create_job_run(post, record, {"type": "PENDING", "name": "Pending"}, "train")
    assert (again["id"], again["state"]["name"]) == (run["id"], "AwaitingConcurrencySlot")
    post(f"/flow_runs/{run['id']}/set_state", {"state": queued_state("an old reason")})
    assert queue_machine.run_in_prefect(second)["state"]["message"] == "Waits for an old reason"
    reason = f"Waits for {queue_machine.rows()[0]['waiting_for']}"

    def refreshed() -> bool:
        WaitReasons().poll(queue_machine.ledger)
        return queue_machine.run_in_prefect(second)["state"]["message"] == reason

    until(refreshed, seconds=30, what=reason)
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "second")
    queue_machine.wait(second, "COMPLETED")
    assert queue_machine.wait_in_prefect(second, "Completed")["id"] == run["id"]


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


@pytest.mark.parametrize(
    "at_once", [pytest.param(True, marks=pytest.mark.extended), False], ids=["at-once", "later"]
)
def test_a_stop_takes_a_job_out_of_the_queue(queue_machine: QueueMachine, at_once: bool) -> None:
    """At once: while a process still shows the job in Prefect."""
    first, third = queue_machine.start("first"), queue_machine.start("third")
    second = queue_machine.start("second", "--priority", "1")
    if not at_once:
        wait_without_process(queue_machine, second)
    queue_machine.run("stop", "--job-id", second)
    queue_machine.wait(second, "STOPPED")
    until(lambda: queue_machine.queued() == [third], seconds=5, what="only the third in the queue")
    if not at_once:  # else there may never be a run
        queue_machine.wait_in_prefect(second, "Cancelled")
    queue_machine.wait(first, "RUNNING")
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "second", "third")
    for job_id in (first, third):
        queue_machine.wait(job_id, "COMPLETED")
    queue_machine.check_intervals("first", "third")
    assert queue_machine.view(second)["attempts"] == []
    if queue_machine.ledger.runs.list(second):
        queue_machine.wait_in_prefect(second, "Cancelled")
    queue_machine.check_idle()


def test_a_run_that_is_cancelled_in_prefect_never_starts(queue_machine: QueueMachine) -> None:
    first, second, third = (queue_machine.start(name) for name in ("first", "second", "third"))
    run = queue_machine.wait_in_prefect(second, "AwaitingConcurrencySlot")
    # As the UI's button does.
    call(queue_machine, "POST", f"flow_runs/{run['id']}/set_state", state={"type": "CANCELLING"})
    queue_machine.wait_for_start("first")
    queue_machine.release("first", "second", "third")
    for job_id in (first, third):
        queue_machine.wait(job_id, "COMPLETED")
    assert queue_machine.wait(second, "STOPPED", "COMPLETED") == "TRAINING_JOB_STOPPED"
    queue_machine.check_intervals("first", "third")
    queue_machine.wait_in_prefect(second, "Cancelled")
    queue_machine.check_idle()


SCRIPT = "from prefect_bt.flows.train import train; train({!r})"


@contextmanager
def script(machine: QueueMachine, name: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Call the flow in a process; yield the process and the id of the job, which waits."""
    words = [sys.executable, "-c", SCRIPT.format(str(machine.config(name)))]
    process = subprocess.Popen(words, env=machine.environment, stdin=subprocess.DEVNULL)
    try:

        def waits() -> str:
            return next((one.id for one in machine.ledger.list_jobs() if one.name == name), "")

        job_id = until(waits, seconds=60, what="the job of the script")
        machine.wait(job_id, "PENDING")
        until(lambda: job_id in machine.queued(), seconds=20, what="the job in the queue")
        yield process, job_id
    finally:
        process.kill()
        process.wait()


def test_a_flow_in_a_script_waits_in_its_process(queue_machine: QueueMachine) -> None:
    queue_machine.start("first")
    with script(queue_machine, "interrupted") as (process, job_id):
        process.send_signal(signal.SIGINT)
        queue_machine.wait(job_id, "STOPPED")
        assert process.wait(60) != 0
        assert queue_machine.queued() == []
    with script(queue_machine, "second") as (process, job_id):
        assert process.poll() is None
        queue_machine.wait_for_start("first")
        queue_machine.release("first", "second")
        queue_machine.wait(job_id, "COMPLETED")
        assert process.wait(60) == 0
    queue_machine.check_intervals("first", "second")
    queue_machine.check_idle()


def test_a_worker_ends_the_leases_of_dead_jobs_and_may_die_itself(
    queue_machine: QueueMachine,
) -> None:
    first, second, third = ids = [
        queue_machine.start(name) for name in ("first", "second", "third")
    ]
    queue_machine.wait_for_start("first")
    for job_id in (second, third):
        wait_without_process(queue_machine, job_id)
    with working(queue_machine) as worker:
        queue_machine.kill_all(first)
        until(lambda: len(queue_machine.starts()) == 2, seconds=60, what="another start")
        (lease,) = Leases(queue_machine.ledger.store).read()
        waiting = [job_id for job_id in ids if job_id != lease.job.id]
        for job_id in waiting:
            wait_without_process(queue_machine, job_id)
        worker.kill()
    queue_machine.kill_all(lease.job.id)
    assert sorted(queue_machine.queued()) == sorted(waiting)
    with working(queue_machine):
        queue_machine.release("first", "second", "third")
        for job_id in ids:
            queue_machine.wait(job_id, "COMPLETED", seconds=60)
        queue_machine.check_idle()
    ends = [one.name for one in queue_machine.times() if one.word == "end"]
    assert sorted(ends) == ["first", "second", "third"], "each job ended once"


def wait_without_process(machine: QueueMachine, job_id: str) -> None:
    machine.wait(job_id, "PENDING")
    machine.wait_in_prefect(job_id, "AwaitingConcurrencySlot")
    until(lambda: not machine.job_processes(job_id), seconds=10, what=f"no process of {job_id}")


SHORT = HOLDS.replace('until test -e "$SHARED/go-$NAME"; do sleep 0.1; done', "sleep 2")
SHORT = SHORT[SHORT.index("say()") :]  # two machines have two GPUs


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


@pytest.mark.parametrize("end", [pytest.param("FAILED", marks=pytest.mark.extended), "STOPPED"])
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
