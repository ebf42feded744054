"""Jobs of a cluster in the queue: what its machines have, and leases of several machines in it."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.queue.machine_queue import MachineQueue
from prefect_bt.queue.machines import list_machines
from prefect_bt.queue.overview import capacity_document, read_schedule
from prefect_bt.queue.pod_placement import PodPlacement
from prefect_bt.queue.records import Demand, Lease, Limit, Machine, QueuedJob
from prefect_bt.queue.schedule import Schedule, make_schedule
from prefect_bt.queue.waiting_jobs import list_waiting_jobs
from prefect_bt.substrates.protocol import CPUS, MEMORY, PodHost
from tests.queue.queued_jobs import queue_job

GIB = 1024**3
NOW = 1000.0


def host(gpus=8, free=None, cpus=64.0, jobs=None, *, for_gpus=False):
    """A machine of the cluster. `free`: GPUs that no pod requests; CPUs in the same share."""
    share = 1.0 if free is None or not gpus else free / gpus
    total = {CPUS: round(1000 * cpus), MEMORY: 512 * GIB, **({"H100": gpus} if gpus else {})}
    left = {name: int(share * amount) for name, amount in total.items()}
    return PodHost(total, left, jobs or {}, for_gpus)


def cluster(*hosts, host_id="c"):
    return Machine(host_id, "prod/training", 0, 0, {}, NOW, ("kubernetes",), pod_hosts=hosts)


def job(id_, gpus=8, nodes=1, cpus=8.1, at=0.0, **facts):
    demand = Demand(gpus * nodes, "H100" if gpus else "", cpus * nodes, GIB * nodes)
    facts = {"cluster": "c", "substrate": "kubernetes", **facts}
    return QueuedJob(id_, demand, at, nodes=nodes, **facts)


def lease(number, machine="a", **facts):
    return Lease(number, job(f"run{number}", **facts), machine, NOW - 10)


def decide(waiting, places, leases=(), limits=()):
    return make_schedule(places, leases, waiting, limits, now=NOW)


def reasons(schedule: Schedule) -> list[str]:
    return [wait.reason.partition("; job")[0] for wait in schedule.waits]


def started(schedule: Schedule) -> dict[str, str]:
    return {start.job.id: start.host for start in schedule.starts}


def test_leases_of_two_machines_count_in_one_cluster():
    leases = [lease(1, "a", gpus=4), lease(2, "b", gpus=4)]
    result = decide([job("x", 4)], [cluster(host())], leases)
    assert reasons(result) == ["4 H100: prod/training has 0 of 8 free"]
    assert started(decide([job("x", 4)], [cluster(host())], leases[:1])) == {"x": "c"}


def test_a_lease_counts_in_its_cluster_and_not_on_the_machine_that_watches_it():
    machine = Machine("a", "a", 8, 64 * GIB)
    local = QueuedJob("here", Demand(cpus=8), 0.0)
    result = decide([local, job("x", 8)], [machine, cluster(host())], [lease(1, "a")])
    assert started(result) == {"here": "a"}
    assert reasons(result) == ["8 H100: prod/training has 0 of 8 free"]


def test_the_pods_of_a_lease_count_once():
    """Whether they run already or not."""
    running = cluster(host(free=4, jobs={"run1": 1}))
    for place in (running, cluster(host())):
        leases = [lease(1, gpus=4, cpus=32.0)]
        assert started(decide([job("x", 4)], [place], leases)) == {"x": "c"}
        assert reasons(decide([job("x", 5)], [place], leases)) == [
            "5 H100: prod/training has 4 of 8 free"
        ]


def test_a_lease_with_pods_on_a_closed_machine_holds_nothing_of_the_others():
    place = cluster(PodHost({}, {}, {"run1": 1}), host(free=6, jobs={"run2": 1}))
    leases = [lease(1, gpus=8), lease(2, gpus=2, cpus=16.0)]
    assert started(decide([job("x", 6)], [place], leases)) == {"x": "c"}
    assert reasons(decide([job("x", 7)], [place], leases)) == [
        "7 H100: prod/training has 6 of 8 free"
    ]


def test_the_pods_of_others_count():
    assert reasons(decide([job("x", 8)], [cluster(host(free=3))])) == [
        "8 H100: prod/training has 3 of 8 free"
    ]
    result = decide([job("x", 0, cpus=10.1)], [cluster(host(0, cpus=10.0))])
    assert reasons(result) == ["a node with 10.1 CPUs and 1 GiB: the whole cluster has room for 0"]


def test_free_resources_on_different_machines_are_not_added():
    halves = cluster(host(free=8), host(free=4), host(free=4))
    result = decide([job("x", 8, nodes=2), job("y", 4, nodes=2)], [halves])
    assert reasons(result)[0] == (
        "2 nodes with 8 H100, 8.1 CPUs and 1 GiB each: there is room for 1 now"
    )
    assert started(decide([job("y", 4, nodes=4)], [halves])) == {"y": "c"}
    assert result.waits[0].starts_at is None


def test_a_job_that_does_not_fit_holds_back_the_jobs_behind_it():
    halves = cluster(host(free=4), host(free=4))
    assert started(decide([job("x", 8), job("y", 4, at=1.0)], [halves])) == {}
    assert started(decide([job("z", 8, nodes=3), job("y", 4)], [halves])) == {"y": "c"}


def test_pods_of_one_decision_do_not_share_a_place():
    result = decide([job("x", 5), job("y", 5), job("z", 5)], [cluster(host(), host())])
    assert started(result) == {"x": "c", "y": "c"}


def test_machines_for_gpus_run_no_other_pods():
    place = cluster(host(for_gpus=True), host(0, cpus=4.0))
    result = decide([job("x", 0, cpus=3.1), job("y", 0, cpus=3.1), job("z", 8)], [place])
    assert started(result) == {"x": "c", "z": "c"}
    assert reasons(result)[0] == "a node with 3.1 CPUs and 1 GiB: there is room for 0 now"


def test_spot_jobs_leave_when_their_machines_are_needed():
    """One that holds half of each machine is in the way of a node that needs a whole one."""
    jobs = {"run1": 1}
    place = cluster(host(free=4, jobs=jobs), host(free=4, jobs=jobs))
    spot = lease(1, gpus=4, nodes=2, cpus=32.0, spot=True)
    result = decide([job("x", 8)], [place], [spot])
    assert [one.number for one in result.preempted] == [1]
    assert reasons(result) == ["1 spot job to stop (run1)"]


def test_limits_count_the_jobs_of_clusters():
    result = decide([job("x", 8)], [cluster(host(), host())], [lease(1)], [Limit("H100", None, 8)])
    assert reasons(result) == ["the limit of 8 H100: 8 are used"]


def test_an_unreachable_cluster_blocks_no_other_job():
    result = decide([job("x", cluster="d"), job("y")], [cluster(host())])
    reason = "its cluster: no machine of the queue reaches it"
    assert (started(result), reasons(result)) == ({"y": "c"}, [reason])


def test_a_job_that_waits_in_a_process_elsewhere_holds_nothing():
    result = decide([job("x", host="gone"), job("y", at=1.0)], [cluster(host())])
    assert (started(result), reasons(result)) == ({"y": "c"}, ["its machine is away"])


def test_smaller_jobs_do_not_take_the_machine_that_a_job_ahead_needs():
    """Sums would allow it: 13 GPUs are free, of which the job ahead needs 8."""
    places = cluster(host(free=5), host(free=4), host(free=4))
    result = decide([job("x", 8), job("y", 5, at=1.0)], [places])
    assert (started(result), reasons(result)[1]) == ({}, "the jobs ahead of it")
    assert started(decide([job("x", 8), job("z", 4, at=1.0)], [places])) == {"z": "c"}
    placement = PodPlacement(places.pod_hosts, [])
    placement.keep(job("x", 8), NOW)
    placement.place(job("z", 4), inf)
    assert [placement.count(job("y", gpus), end=inf) for gpus in (4, 5)] == [1, 0]
    assert placement.count(job("y", 5), end=NOW) == 1


def test_a_maximum_run_time_fills_gaps():
    leases = [Lease(1, job("run1", 8, run_time=100.0), "a", NOW)]
    place = cluster(host(), host())
    waiting = [job("x", 8, nodes=2), job("y", 8, at=1.0, run_time=90.0)]
    result = decide(waiting, [place], leases)
    assert started(result) == {"y": "c"}
    assert result.waits[0].starts_at == NOW + 100.0


# -- the queue of a machine that reaches the cluster -----------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


def open_queue(ledger: Ledger, folder: Path, place: Machine | None) -> MachineQueue:
    queue = MachineQueue(ledger, folder, cpus=2, memory=GIB)
    queue.read_cluster = lambda cluster_id: place if cluster_id == "c" else None
    return queue


def admit_all(queue: MachineQueue) -> list[str]:
    """Begin a lease of each job that may start; return their IDs."""
    with queue.take_turn():
        return [job.id for job in queue.choose(()) if queue.begin_lease(job)]


def test_two_machines_start_a_job_of_their_cluster_once(ledger: Ledger, tmp_path: Path) -> None:
    place = cluster(host())
    first, second = (open_queue(ledger, tmp_path / name, place) for name in ("a", "b"))
    queue_job(ledger, job("x"))
    assert [*admit_all(first), *admit_all(second)] == ["x"]


def test_a_job_stays_queued_while_its_cluster_is_away(ledger: Ledger, tmp_path: Path) -> None:
    queue = open_queue(ledger, tmp_path / "a", None)
    queue_job(ledger, job("x"))
    queue_job(ledger, QueuedJob("local", Demand(cpus=1), 1.0))
    assert admit_all(queue) == ["local"]
    assert [one.id for one in list_waiting_jobs(ledger.store)] == ["x", "local"]


def test_a_job_that_waits_in_a_process_is_left_to_it(ledger: Ledger, tmp_path: Path) -> None:
    queue = open_queue(ledger, tmp_path / "a", cluster(host()))
    queue_job(ledger, job("x", host="another"))
    assert admit_all(queue) == []


def test_others_see_the_cluster_that_a_machine_has_read(ledger: Ledger, tmp_path: Path) -> None:
    place = replace(cluster(host(free=4)), seen_at=2e9, cpus=64, gpus={"H100": 8}, memory=512 * GIB)
    queue = open_queue(ledger, tmp_path / "a", place)
    waiting = job("x", 8, cpus=8.1)
    waiting = queue_job(ledger, waiting)
    assert list_waiting_jobs(ledger.store) == [replace(waiting, since=waiting.submitted_at)]
    assert admit_all(queue) == []
    assert place in [replace(x, seen_at=place.seen_at) for x in list_machines(ledger.store)]
    assert reasons(read_schedule(ledger)) == ["8 H100: prod/training has 4 of 8 free"]
    row = next(x for x in capacity_document(ledger.store)["machines"] if x["host"] == "c")
    assert (row["cpus_used"], row["gpus"]) == (32, [{"gpu_type": "H100", "count": 8, "used": 4}])
