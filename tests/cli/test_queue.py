"""The queue, priorities and capacity: what the commands show of a store, and what they change."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest

from prefect_bt.definitions import Accelerator, AcceleratorSpec, Compute
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import SupportsLinks
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import list_limits, report_machine
from prefect_bt.queue.overview import ABOUT_TO_START, read_schedule
from prefect_bt.queue.queue_context import queue_context
from prefect_bt.queue.records import Demand, Lease, Limit, Machine, QueuedJob
from prefect_bt.queue.schedule import Schedule
from prefect_bt.queue.waiting_jobs import add_waiting_job, list_waiting_jobs, put_entry
from tests.cli.conftest import Cli, Within
from tests.jobs.records import new_record, small_project
from tests.written_jobs import write_job

GIB = 1024**3
EIGHT = Demand(8, "H100", 32, 256 * GIB)
FOUR = Demand(4, "H100", 16, 128 * GIB)
GPU_KEYS = {
    *("gpu_type", "baseline", "limit"),
    *("usage_count", "dedicated_usage_count", "spot_usage_count"),
}


class Queue:
    """A store with a machine of 8 H100, and verbs to put jobs in its queue."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger(open_store(url))
        self.store = self.ledger.store
        self.now = time.time()

    def machine(self, host: str = "a1", *, name: str = "big", gpus: int = 8, age: float = -60):
        """A machine whose report is `age` seconds old; it stays present during a test."""
        offered = {"H100": gpus} if gpus else {}
        report_machine(self.store, Machine(host, name, 64, 512 * GIB, offered, 1.0))
        self.backdate(f"queue/machines/{host}.json", age)

    def backdate(self, key: str, age: float) -> None:
        """Make an object `age` seconds old by the store's clock."""
        assert isinstance(self.store, SupportsLinks)
        path = self.store.find_local_path(key)
        assert path
        os.utime(path, (self.now - age, self.now - age))

    def record(self, *, team: str = "", state: JobState = JobState.PENDING) -> JobRecord:
        spec = AcceleratorSpec(accelerator=Accelerator.H100, count=8)
        project = small_project(compute=Compute(accelerator=spec), team=team or None)
        record = new_record(self.ledger, project, created_at=self.now)
        write_job(self.ledger, record, state=state)
        return record

    def wait(
        self, demand: Demand = EIGHT, *, age: float = 0.0, team: str = "", **facts
    ) -> QueuedJob:
        """A job that has waited for `age` seconds."""
        record, at = self.record(team=team), self.now - age
        job = QueuedJob(record.id, demand, at, since=at, team=team, event=0, **facts)
        assert add_waiting_job(self.ledger, job)
        return job

    def run(self, demand: Demand = EIGHT, *, host: str = "a1", **facts) -> Lease:
        record = self.record(state=JobState.CREATED)
        job = QueuedJob(record.id, demand, self.now - 600, since=self.now - 600, **facts)
        leases = Leases(self.store)
        leases.read()
        lease = leases.create(job, host=host)
        assert lease
        self.backdate(f"queue/leases/{lease.number:06d}.json", 300)
        return replace(lease, at=self.now - 300)


@pytest.fixture
def waiting(cli: Cli) -> Queue:
    return Queue(cli.env["PREFECT_BT_STORE"])


def test_an_empty_queue(within: Within):
    done = within("queue")
    assert (done.code, done.out, done.err) == (0, "No job waits.\n", "")
    assert within("queue", "-o", "json").json == []


def test_the_queue_as_a_table(within: Within, waiting: Queue):
    waiting.machine()
    held = waiting.run(run_time=300 + 12 * 60 + 20, user="alice")
    first = waiting.wait(age=3600, priority=5)
    second = waiting.wait(Demand(0, "", 2, 12 * GIB), age=65, spot=True, host="gone")
    until = time.strftime("%H:%M", time.gmtime(held.ends_at))
    done = within("queue")
    head, names, *rows = done.out.splitlines()
    assert (done.code, done.err, head) == (0, "", "Queue")
    assert names.split("  ")[0] == "Place"
    assert "Team" not in names
    cells = [[cell for cell in row.split("  ") if cell] for row in rows]
    name = [waiting.ledger.get_job(job.id).name for job in (first, second)]
    assert [cell.strip() for cell in cells[0]] == [
        "1", first.id, name[0], "tiny", "8 H100", "On-demand", "5",
        f"8 H100: big has 0 of 8 free; job {held.job.id} of alice holds 8, until about {until} UTC",
        "1 h 0 min", "in 12 min",
    ]  # fmt: skip
    assert [cell.strip() for cell in cells[1]][:8] == [
        "2", second.id, name[1], "tiny", "2 CPUs, 12 GiB", "Spot", "0", "its machine is away",
    ]  # fmt: skip
    assert "Starts" in names
    assert "in " not in rows[1].partition("is away")[2].replace(" min ", "")


def test_a_start_that_is_far_away_is_a_time(within: Within, waiting: Queue):
    waiting.machine()
    lease = waiting.run(run_time=7200)
    waiting.wait()
    assert lease.ends_at
    expected = time.strftime("%Y-%m-%d %H:%M:", time.gmtime(lease.ends_at))
    assert expected in within("queue").out


def test_the_queue_as_json(within: Within, waiting: Queue):
    waiting.machine()
    held = waiting.run(FOUR, user="bob")
    starts = waiting.wait(FOUR, age=10)
    later = waiting.wait(age=5, team="research")
    found = within("queue", "-o", "json").json
    assert list(found[0])[:5] == ["id", "place", "priority", "waiting_for", "since"]
    assert [(one["id"], one["place"]) for one in found] == [(starts.id, 1), (later.id, 2)]
    assert found[0]["waiting_for"] == ABOUT_TO_START
    assert found[1] == {
        "id": later.id,
        "place": 2,
        "priority": 0,
        "waiting_for": found[1]["waiting_for"],
        "since": found[1]["submitted_at"],
        "starts_at": None,
        "team": "research",
        "gpus": 8,
        "gpu_type": "H100",
        "cpus": 32,
        "memory": 256 * GIB,
        "spot": False,
        "submitted_at": found[1]["submitted_at"],
        "held_by": [found[1]["held_by"][0]],
        "machine": None,
    }
    assert found[0]["machine"] == "big"
    assert found[1]["held_by"][0] == {
        "id": held.job.id,
        "user": "bob",
        "gpus": 4,
        "gpu_type": "H100",
        "cpus": 16,
        "memory": 128 * GIB,
        "ends_at": None,
    }
    assert found[1]["since"].endswith("+00:00")
    assert "Team" in within("queue").out


def test_a_job_that_a_machine_took_waits_no_more(waiting: Queue):
    waiting.machine()
    job = waiting.wait(FOUR)
    leases = Leases(waiting.store)
    leases.read()
    assert leases.create(job, host="a1")  # its entry is deleted after the lease began
    assert read_schedule(waiting.ledger) == Schedule()
    put_entry(waiting.store, replace(job, event=1))  # it was preempted
    waiting.ledger.append_event(job.id, JobState.CREATED)
    waiting.ledger.append_event(job.id, JobState.PENDING)
    put_entry(waiting.store, replace(job, event=2))
    assert [start.job.event for start in read_schedule(waiting.ledger).starts] == [2]


def test_jobs_without_a_machine_that_is_present(within: Within, waiting: Queue):
    waiting.machine(age=3600)
    waiting.wait(FOUR)
    [row] = within("queue", "-o", "json").json
    assert row["starts_at"] is None
    assert row["waiting_for"] not in {"", ABOUT_TO_START}


def test_the_first_jobs_are_shown_and_the_others_counted(within: Within, waiting: Queue):
    jobs = [waiting.wait(age=1000 - index).id for index in range(52)]
    done = within("queue")
    assert [line.split()[1] for line in done.out.splitlines()[2:]] == jobs[:50]
    assert done.err == "2 more jobs wait. All: --all.\n"
    done = within("queue", "--all")
    assert [line.split()[1] for line in done.out.splitlines()[2:]] == jobs
    assert done.err == ""
    assert len(within("queue", "-o", "json").json) == 52


def test_a_thousand_jobs_in_json_need_no_record_of_a_job(within: Within, waiting: Queue):
    waiting.machine()
    waiting.run(run_time=900)
    for index in range(1000):  # no job is written: their records would be missing
        at = waiting.now - index
        put_entry(waiting.store, QueuedJob(f"j{index:06d}", FOUR, at, run_time=600))
    found = within("queue", "-o", "json").json
    assert [one["place"] for one in found] == list(range(1, 1001))


def test_the_names_of_a_deleted_job_are_empty(within: Within, waiting: Queue):
    put_entry(waiting.store, QueuedJob("gone123", FOUR, waiting.now))
    assert "gone123" in within("queue").out


def test_a_watch_prints_the_queue_again_when_it_changes(cli: Cli, waiting: Queue):
    waiting.machine()
    first = waiting.wait(age=9)
    watch = cli.start("queue", "--watch", "-o", "json")
    assert watch.stdout
    try:
        assert [one["id"] for one in json.loads(watch.stdout.readline())] == [first.id]
        second = waiting.wait(age=3)
        assert [one["id"] for one in json.loads(watch.stdout.readline())] == [first.id, second.id]
    finally:
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=60)


def test_an_update_moves_a_job_to_its_new_place(within: Within, waiting: Queue):
    waiting.wait(age=20)
    second = waiting.wait(age=10)
    done = within("update", "--job-id", second.id, "--priority", "3")
    expected = f"Job {second.id} has priority 3 and is dedicated. It is number 1 of the queue.\n"
    assert (done.code, done.out, done.err) == (0, expected, "")
    found = within("update", "--job-id", second.id, "--priority", "-1", "-o", "json").json
    expected = {"id": second.id, "priority": -1, "availability_model": "dedicated", "place": 2}
    assert found == {"training_job": expected}
    assert [job.priority for job in list_waiting_jobs(waiting.store)] == [0, -1]


def test_only_a_job_that_waits_is_updated(within: Within, waiting: Queue):
    lease = waiting.run()
    error = within("update", "--job-id", lease.job.id, "--priority", "3").refusal()
    assert error == (
        f"error: Job {lease.job.id} does not wait (TRAINING_JOB_CREATED), so the change would have"
        f" no effect. See: prefect-bt view --job-id {lease.job.id}\n"
    )
    unqueued = waiting.record()
    done = within("update", "--job-id", unqueued.id, "--priority", "3")
    assert (done.code, "Show the queue: prefect-bt queue" in done.err) == (1, True)
    assert within("update", "--job-id", "nope123", "--priority", "3").code == 1
    done = within("update", "--job-id", unqueued.id)
    assert (done.code, done.err) == (
        2,
        "error: There is nothing to change. Give --priority or --availability-model.\n",
    )


def test_capacity_without_a_machine(within: Within):
    done = within("capacity", "view")
    assert (done.code, done.out.count("\n")) == (0, 1)
    expected = {"gpu_capacities": [], "team_gpu_capacities": [], "machines": []}
    assert within("capacity", "view", "-o", "json").json == expected


def test_the_capacity(within: Within, waiting: Queue):
    waiting.machine()
    waiting.machine("b2", name="small", gpus=0, age=3600)
    waiting.run(FOUR)
    spot = waiting.run(Demand(2, "H100", 8, 64 * GIB), team="research", spot=True)
    done = within("capacity", "view")
    ids = ", ".join(lease.job.id for lease in Leases(waiting.store).read())
    assert (
        done.out
        == f"""\
Training GPU Capacity
GPU Type  Baseline  Limit  On-Demand  Spot
H100      0         8      4          2

Team Training GPU Capacity
Team      GPU Type  Baseline  Limit  On-Demand  Spot
default   H100      0                4          0
research  H100      0                0          2

Machines
Machine         GPUs      CPUs   Memory             Jobs
big             6/8 H100  24/64  192 GiB / 512 GiB  {ids}
small (absent)            0/64   0 / 512 GiB

"""
    )
    found = within("capacity", "view", "-o", "json").json
    [gpu], [default, research] = found["gpu_capacities"], found["team_gpu_capacities"]
    assert gpu.keys() == GPU_KEYS
    assert (gpu["usage_count"], gpu["limit"]) == (6, 8)
    assert default.keys() == GPU_KEYS | {"team_id", "team_name"}
    assert (default["team_id"], default["team_name"], default["limit"]) == ("default",) * 2 + (
        None,
    )
    assert (research["team_name"], research["spot_usage_count"]) == ("research", 2)
    assert found["machines"][0] == {
        "name": "big",
        "host": "a1",
        "present": True,
        "cpus": 64,
        "cpus_used": 24,
        "memory": 512 * GIB,
        "memory_used": 192 * GIB,
        "gpus": [{"gpu_type": "H100", "count": 8, "used": 6}],
        "jobs": [found["machines"][0]["jobs"][0], spot.job.id],
    }


def limit(waiting: Queue, team: str | None) -> Limit:
    [found] = [one for one in list_limits(waiting.store) if one.team == team]
    return replace(found, modified_at=0.0)


def test_limits_are_set_and_removed(within: Within, waiting: Queue):
    update = ("capacity", "update", "--gpu-type", "H100")
    found = within(*update, "--capacity", "6", "-o", "json").json
    assert list(found) == ["gpu_capacity"]
    assert found["gpu_capacity"]["limit"] == 6
    for team, name in (("default", ""), ("research", "research")):
        given = ("--team", team, "--capacity", "4", "--baseline", "2")
        found = within(*update, *given, "-o", "json").json
        assert list(found) == ["team_gpu_capacity"]
        assert found["team_gpu_capacity"]["team_name"] == team
        assert limit(waiting, name) == Limit("H100", name, 4, 2)
    within(*update, "--team", "research", "--capacity", "none")
    assert limit(waiting, "research") == Limit("H100", "research", None, 2)
    within(*update, "--team", "research", "--baseline", "0")
    assert limit(waiting, "research") == Limit("H100", "research", None, 0)
    assert limit(waiting, None) == Limit("H100", None, 6)
    [gpu] = within("capacity", "view", "-o", "json").json["gpu_capacities"]
    assert (gpu["limit"], gpu["baseline"]) == (6, 2)
    shown = within(*update, "--capacity", "7").out.splitlines()
    assert (shown[0], shown[2].split()) == ("Training GPU Capacity", ["H100", "2", "7", "0", "0"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--gpu-type", "H100"], "There is nothing to change. Give --capacity or --baseline."),
        (["--gpu-type", "h100", "--capacity", "1"], "No GPU type is called 'h100'. Known: "),
        (["--gpu-type", "H100", "--capacity", "-1"], "--capacity '-1' is not a number of GPUs."),
        (["--gpu-type", "H100", "--capacity", "many"], "--capacity 'many' is not a number"),
        (["--gpu-type", "H100", "--baseline", "1"], "A baseline belongs to a team. Add --team"),
        (["--gpu-type", "H100", "--team", "a", "--baseline", "-1"], "Invalid value"),
        (
            ["--gpu-type", "H100", "--team", "a", "--capacity", "1", "--baseline", "2"],
            "The baseline 2 is above the limit 1 of the team.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_limits(within: Within, waiting: Queue, given: list[str], told: str):
    assert told in within("capacity", "update", *given).refusal(2)
    assert list_limits(waiting.store) == []


def test_a_limit_of_a_type_that_only_a_machine_has(within: Within, waiting: Queue):
    report_machine(waiting.store, Machine("c3", "odd", 8, GIB, {"MI300X": 1}, waiting.now + 60))
    assert within("capacity", "update", "--gpu-type", "MI300X", "--capacity", "0").code == 0


def test_the_context_of_a_job_that_waits(within: Within, waiting: Queue):
    waiting.machine()
    running, ahead, job = waiting.run(), waiting.wait(age=20), waiting.wait(age=10)
    within("capacity", "update", "--gpu-type", "H100", "--capacity", "8")
    found = queue_context(waiting.ledger, job.id)
    assert found
    assert (found["target_job_id"], found["place"], found["gpu_type"]) == (job.id, 2, "H100")
    assert (found["requested_gpus"], found["released_at"]) == (8, None)
    assert 0 <= found["pending_seconds"] < 60
    assert (found["org_capacity"]["max_gpus"], found["team_capacity"]) == (8, None)
    [active], [before] = found["active_at_submit"], found["pending_ahead_at_submit"]
    assert (active["training_job_id"], active["total_gpus"]) == (running.job.id, 8)
    assert (active["workload_plane_name"], active["status_at_submit"]) == ("big", JobState.CREATED)
    assert (before["training_job_id"], before["requested_gpus"]) == (ahead.id, 8)
    assert before["training_job_name"] == waiting.ledger.get_job(ahead.id).name
    assert [event["status"] for event in found["events"]] == [JobState.PENDING.value]


def test_the_context_of_a_job_that_waited(waiting: Queue):
    record = waiting.record()
    waiting.ledger.append_event(record.id, JobState.CREATED)
    found = queue_context(waiting.ledger, record.id)
    assert found
    assert found["released_at"]
    assert 0 <= found["pending_seconds"] < 60
    assert "place" not in found
    assert found["active_at_submit"] == found["pending_ahead_at_submit"] == found["events"] == []
    never = queue_context(waiting.ledger, waiting.record(state=JobState.CREATED).id)
    assert never
    assert never["pending_seconds"] is None
    assert queue_context(waiting.ledger, "nope123") is None
