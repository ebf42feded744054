"""Which jobs start: rules one by one, then properties of random states, then a simulation."""

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.queue.records import Demand, Lease, Limit, Machine, QueuedJob
from prefect_bt.queue.schedule import Schedule, make_schedule

GIB = 1024**3
NOW = 1000.0


def machine(host="a", gpus=8, cpus=64, memory=16, gpu_type="H100"):
    return Machine(host, host, cpus, memory * GIB, {gpu_type: gpus} if gpus else {})


def job(id_, gpus=0, cpus=1, memory=0, gpu_type="H100", **facts):
    demand = Demand(gpus, gpu_type if gpus else "", cpus, memory * GIB)
    return QueuedJob(id_, demand, facts.pop("submitted_at", 0.0), **facts)


def lease(number, gpus=0, host="a", at=NOW - 10, **facts):
    return Lease(number, job(f"run{number}", gpus, **facts), host, at)


def decide(waiting, machines=None, leases=(), limits=()):
    return make_schedule(machines or [machine()], leases, waiting, limits, now=NOW)


def started(schedule: Schedule) -> dict[str, str]:
    return {start.job.id: start.host for start in schedule.starts}


def reasons(schedule: Schedule) -> dict[str, str]:
    return {wait.job.id: wait.reason.partition("; job")[0] for wait in schedule.waits}


def test_a_job_takes_the_machine_that_it_fills_best():
    machines = [machine("a"), machine("b", cpus=32), machine("c")]
    result = decide([job("x", 4), job("y", 8)], machines, [lease(1, 4, host="c")])
    assert started(result) == {"x": "c", "y": "b"}


def test_a_job_with_more_cpus_and_memory_than_the_machine_takes_all_of_them():
    result = decide([job("x", 1, cpus=1000, memory=1000), job("y")])
    assert reasons(result) == {"y": "1 CPU: a has 0 of 64 free"}


def test_a_job_of_an_absent_machine_blocks_no_other_job():
    result = decide([job("x", host="b"), job("y")])
    assert (started(result), reasons(result)) == ({"y": "a"}, {"x": "its machine is away"})


def test_overcommitted_amounts_count_as_nothing():
    result = decide([job("x", 2), job("y")], leases=[lease(1, 9), lease(2, 9)])
    assert (started(result), reasons(result)) == ({"y": "a"}, {"x": "2 H100: a has 0 of 8 free"})


def test_a_lease_on_an_absent_machine_counts_only_for_limits():
    leases, limits = [lease(1, 8, host="gone")], [Limit("H100", None, 12)]
    result = decide([job("x", 8), job("y", 4)], leases=leases, limits=limits)
    assert reasons(result)["x"] == "the limit of 12 H100: 8 are used"
    assert started(decide([job("x", 8)], leases=leases)) == {"x": "a"}


def test_the_first_of_two_identical_jobs_starts_first():
    assert started(decide([job("x", 5), job("y", 5)])) == {"x": "a"}


def test_jobs_that_no_machine_can_run_block_no_other_job():
    machines = [machine(gpus=4)]
    result = decide([job("x", 8), job("y", 1, gpu_type="B200"), job("z", 4)], machines)
    assert started(result) == {"z": "a"}
    lacks = {"x": "no machine has 8 H100; the largest has 4", "y": "no machine has B200"}
    assert reasons(result) == lacks
    assert "none is there" in reasons(make_schedule([], [], [job("x")], [], now=NOW))["x"]
    assert reasons(decide([job("x", 8, host="a")], machines)) == {"x": "8 H100: its machine has 4"}


@pytest.mark.parametrize(
    ("least", "reason"),
    [
        ({"node_cpus": 65}, "no machine has 65 CPUs; the largest has 64"),
        ({"node_memory": 17 * GIB}, "no machine has 17 GiB of memory; the largest has 16 GiB"),
        ({"node_cpus": 33, "node_memory": 9 * GIB}, "a machine that has all of it: 33 CPUs and 9"),
    ],
)
def test_a_machine_with_less_than_a_node_needs_runs_no_job_of_it(least, reason):
    """A gang may share fewer CPUs than its nodes ask for together; one node may not."""
    machines = [machine("a", memory=8), machine("b", cpus=32)]
    result = decide([job("x", cpus=99, **least), job("y", cpus=99, node_cpus=64)], machines)
    assert (started(result), reasons(result)["x"].startswith(reason)) == ({"y": "a"}, True)


def test_a_reason_names_the_jobs_that_hold_what_is_short():
    held = [lease(1, 3, user="eve", run_time=70), lease(2, 2), lease(3, 1), lease(4, cpus=8)]
    [wait] = decide([job("x", 8)], leases=held).waits
    names = "job run1 of eve holds 3, until about 00:17 UTC, job run2 holds 2, 1 more job holds 1"
    assert wait.reason == f"8 H100: a has 2 of 8 free; {names}"
    assert [one.job.id for one in wait.held_by] == ["run1", "run2", "run3"]


def test_a_reason_names_no_job_of_another_team():
    held = [lease(1, 8, user="eve", team="red")]
    [wait] = decide([job("x", 8, team="blue")], leases=held).waits
    assert wait.reason == "8 H100: a has 0 of 8 free; a job of another team holds 8"


def test_a_short_job_starts_ahead_of_one_with_a_known_start_and_a_long_one_does_not():
    waiting = [job("big", 8), job("short", 4, run_time=90), job("long", 4, run_time=91)]
    result = decide(waiting, leases=[lease(1, 4, run_time=100)])
    assert started(result) == {"short": "a"}
    assert [(w.place, w.starts_at) for w in result.waits] == [(1, NOW + 90), (2, None)]
    alone = decide(waiting[::2], leases=[lease(1, 4, run_time=100)])
    assert reasons(alone) == {"big": "8 H100: a has 4 of 8 free", "long": "the jobs ahead of it"}


def test_an_end_that_has_passed_is_unknown():
    result = decide([job("big", 8), job("x", 1, run_time=1)], leases=[lease(1, 4, run_time=5)])
    assert not result.starts
    assert result.waits[0].starts_at is None


def test_without_known_ends_a_job_behind_gets_only_plentiful_resources():
    waiting = [job("big", 8, cpus=16), job("gpu", 1), job("cpu", cpus=46), job("more")]
    result = decide(waiting, leases=[lease(1, 4)])
    assert started(result) == {"cpu": "a"}
    assert reasons(result)["gpu"] == reasons(result)["more"] == "the jobs ahead of it"


def test_reservations_add_up():
    waiting = [job("x", 8, cpus=30), job("y", 8, cpus=30)]
    assert not decide([*waiting, job("z", cpus=4)], leases=[lease(1, 1)]).starts
    assert started(decide([*waiting, job("z", cpus=3)], leases=[lease(1, 1)])) == {"z": "a"}


def test_a_blocked_job_reserves_only_the_machine_where_it_starts_first():
    machines = [machine("a"), machine("b")]
    leases = [lease(1, 4, run_time=100), lease(2, 4, host="b", run_time=50)]
    result = decide([job("big", 8), job("x", 4)], machines, leases)
    assert started(result) == {"x": "a"}
    assert reasons(result) == {"big": "8 H100: a has 4 of 8 free"}
    assert result.waits[0].starts_at == NOW + 40


def test_the_reason_names_the_missing_resource():
    for waiting, running, reason in (
        (job("x", memory=12), lease(1, memory=13), "12 GiB of memory: a has 3 GiB of 16 GiB free"),
        (job("x", cpus=2), lease(1, cpus=64), "2 CPUs: a has 0 of 64 free"),
    ):
        assert reasons(decide([waiting], leases=[running])) == {"x": reason}


def test_a_job_that_a_team_limit_blocks_reserves_only_in_that_limit():
    limits = [Limit("H100", "vision", 8)]
    waiting = [job("x", 4, team="vision"), job("y", 2, team="vision"), job("z", 2, team="text")]
    waiting.append(job("s", 4, team="vision", spot=True))
    machines = [machine("a"), machine("b")]
    result = decide(waiting, machines, [lease(1, 6, team="vision")], limits)
    assert set(started(result)) == {"z", "s"}
    reason = "the limit of team vision: 6 of 8 H100 are used"
    assert reasons(result) == {"x": reason, "y": "the jobs ahead of it"}


def test_a_job_above_a_limit_blocks_no_other_job():
    limits = [Limit("H100", "", 4), Limit("H100", None, 6)]
    result = decide([job("x", 5), job("y", 4), job("z", 7, team="t")], limits=limits)
    assert started(result) == {"y": "a"}
    assert "asks for 5 H100, the limit of the default team is 4" in reasons(result)["x"]
    assert reasons(result)["z"] == "a higher limit: it asks for 7 H100, the limit is 6"


def test_a_job_that_reserved_a_machine_keeps_its_limit():
    machines, limits = [machine("a"), machine("b", gpus=4)], [Limit("H100", "t", 10)]
    waiting = [job("x", 8, team="t"), job("y", 3, team="t", host="b"), job("z", 3, host="b")]
    result = decide(waiting, machines, [lease(1, 1)], limits)
    assert set(started(result)) == {"z"}


def test_a_baseline_is_kept_for_its_team():
    limits = [Limit("H100", "vision", baseline=4), Limit("H100", "text", baseline=2)]
    waiting = [job("x", 4, team="text"), job("y", 2, team="text"), job("z", 1)]
    waiting += [job("s", 1, spot=True), job("v", 3, team="vision")]
    leases = [lease(1, 1, team="vision"), lease(2, 1)]
    result = decide(waiting, leases=leases, limits=limits)
    assert set(started(result)) == {"y", "s", "v"}
    expected = {"x": "3 H100 that are kept for team vision", "z": "the jobs ahead of it"}
    assert reasons(result) == expected


def test_a_job_that_baselines_rule_out_blocks_no_other_job():
    limits = [Limit("H100", "", baseline=4)]
    result = decide([job("x", 5, team="t"), job("y", 4, team="t")], limits=limits)
    assert started(result) == {"y": "a"}
    assert reasons(result) == {"x": "4 H100 that are kept for the default team"}


def test_spot_jobs_do_not_use_up_a_baseline():
    limits = [Limit("H100", "vision", baseline=4)]
    spot = [lease(1, 4, spot=True), lease(2, 4, spot=True)]
    result = decide([job("x", 4), job("y", 4, team="vision")], None, spot, limits)
    assert [item.number for item in result.preempted] == [2, 1]


def test_the_youngest_spot_jobs_stop_where_the_fewest_gpus_do():
    machines = [machine("a"), machine("b")]
    held = [(6, "a", 10), (2, "a", 5), (4, "b", 10), (2, "b", 5), (2, "b", 9)]
    leases = [lease(n, *facts[:2], NOW - facts[2], spot=True) for n, facts in enumerate(held, 1)]
    result = decide([job("x", 4), job("y", 2), job("s", 8, spot=True)], machines, leases)
    assert reasons(result)["x"] == "2 spot jobs to stop (run4, run5)"
    assert reasons(result)["y"] == "1 spot job to stop (run2)"
    assert {item.number for item in result.preempted} == {4, 5, 2}
    assert [wait.place for wait in result.waits] == [1, 2, 3]


def test_what_a_stopping_job_leaves_is_not_free_yet():
    waiting, running = [job("x", 4), job("y", 2), job("z", 2)], [lease(1, 8, spot=True)]
    result = decide(waiting, leases=[*running, lease(2, host="b", spot=True)])
    assert (result.starts, list(result.preempted)) == ((), running)


def test_a_stopped_spot_job_does_not_take_its_place_again():
    assert started(decide([job("old", 8, spot=True), job("new", 8)])) == {"new": "a"}
    assert not decide([job("x", 8)], leases=[lease(1, 8)]).preempted


def _named(jobs):
    return [replace(item, id=f"j{index}") for index, item in enumerate(jobs)]


def _jobs(run_times, spot):
    sizes = {"gpus": st.integers(0, 5), "cpus": st.integers(0, 4), "run_time": run_times}
    facts = {"team": st.sampled_from(["", "t"]), "host": st.sampled_from(["", "", "a", "b"])}
    return st.builds(job, st.just("?"), spot=spot, **sizes, **facts)


NO, ANY = st.just(False), st.booleans()
RUN_TIMES = st.sampled_from([None, 15.0, 20.0, 40.0])
MACHINES = [machine("a", gpus=4, cpus=6), machine("b", gpus=3, cpus=4)]
LEASES = st.lists(st.tuples(_jobs(RUN_TIMES, ANY), st.sampled_from("abc")), max_size=5).map(
    lambda items: [Lease(n, item, host, NOW - 10 - n) for n, (item, host) in enumerate(items)]
)
LIMITS = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3)).map(
    lambda n: [Limit("H100", None, n[0]), Limit("H100", "t", n[1]), Limit("H100", "", None, n[2])]
)
QUEUES = st.lists(_jobs(RUN_TIMES, ANY), max_size=7).map(_named)


def _held(jobs, name):
    return sum(getattr(item.demand, name) for item in jobs)


@settings(max_examples=80, deadline=None)
@given(LEASES, QUEUES, LIMITS)
def test_what_starts_never_exceeds_machines_or_limits(leases, waiting, limits):
    result = decide(waiting, MACHINES, leases, limits)
    assert len(result.starts) + len(result.waits) == len(waiting)
    for offer in MACHINES:
        new = [start.job for start in result.starts if start.host == offer.host]
        old = [item.job for item in leases if item.host == offer.host]
        for name, total in (("gpus", offer.gpus["H100"]), ("cpus", offer.cpus)):
            assert not _held(new, name) or _held([*new, *old], name) <= total
    for team, maximum in ((None, limits[0].maximum), ("t", limits[1].maximum)):
        new = [s.job for s in result.starts if not s.job.spot and team in {None, s.job.team}]
        old = [x.job for x in leases if not x.job.spot and team in {None, x.job.team}]
        assert not _held(new, "gpus") or _held([*new, *old], "gpus") <= maximum


@settings(max_examples=50, deadline=None)
@given(LEASES, QUEUES, LIMITS, st.randoms(use_true_random=False))
def test_the_order_of_machines_leases_and_limits_does_not_matter(leases, waiting, limits, random):
    first = decide(waiting, MACHINES, leases, limits)
    machines = random.sample(MACHINES, len(MACHINES))
    leases, limits = random.sample(leases, len(leases)), random.sample(limits, len(limits))
    assert decide(waiting, machines, leases, limits) == first


@settings(max_examples=50, deadline=None)
@given(QUEUES, LIMITS)
def test_an_idle_cluster_starts_something_unless_nothing_can_ever_start(waiting, limits):
    result = decide(waiting, MACHINES, [], limits)
    never = ("no machine has", "a higher limit", "its machine has", "kept for")
    if not result.starts:
        assert all(any(text in wait.reason for text in never) for wait in result.waits)


@settings(max_examples=80, deadline=None)
@given(LEASES, QUEUES, LIMITS)
def test_a_job_starts_after_the_stops_ahead_of_the_stopped_jobs(leases, waiting, limits):
    result = decide(waiting, MACHINES, leases, limits)
    dedicated = [wait for wait in result.waits if not wait.job.spot]
    if dedicated and "to stop" in dedicated[0].reason:
        leases = [item for item in leases if item not in result.preempted]
        leases += [Lease(9, start.job, start.host, NOW) for start in result.starts]
        waiting = [item.job for item in (*result.preempted, *result.waits)]
        assert dedicated[0].job.id in started(decide(waiting, MACHINES, leases, limits))


def _ends_before_start(head, waiting, leases, order):
    """Return after how many ends the head has started; ends that are left count as never."""
    running, queue = list(leases), list(waiting)
    for count in range(len(order) + 1):
        result = decide(queue, MACHINES, running)
        if any(start.job.id == head for start in result.starts):
            return count
        for start in result.starts:
            running.append(Lease(100 + len(running), start.job, start.host, NOW))
        queue = [wait.job for wait in result.waits]
        running = [item for item in running if item.number not in order[: count + 1]]
    return len(order) + 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(_jobs(st.none(), NO), st.sampled_from("ab")), max_size=4),
    st.lists(_jobs(st.none(), NO), min_size=1, max_size=4).map(_named),
)
def test_jobs_behind_never_delay_the_first_when_no_end_is_known(held, waiting):
    leases = [Lease(n, item, host, NOW) for n, (item, host) in enumerate(held)]
    for order in permutations(range(len(leases))):
        alone = _ends_before_start("j0", waiting[:1], leases, order)
        assert _ends_before_start("j0", waiting, leases, order) <= alone


def _simulate(jobs, machines, limits=()):
    """Return when the last job has ended, in virtual time; every job runs for its run time."""
    now, running, queue, number = 0.0, [], sorted(jobs, key=lambda item: item.rank), 0
    promised = {}
    while queue or running:
        result = make_schedule(machines, running, queue, limits, now=now)
        for start in result.starts:
            number += 1
            running.append(Lease(number, start.job, start.host, now))
            assert limits or now <= promised.get(start.job.id, now) + 0.001
        queue = [wait.job for wait in result.waits]
        promised = {wait.job.id: wait.starts_at or 0.0 for wait in result.waits[:1]} | promised
        assert running, "jobs wait, and none runs"
        now = min(item.ends_at for item in running)
        running = [item for item in running if item.ends_at > now]
    return now


def random_jobs(count, seed):
    random = Random(seed)
    sizes, teams = [1, 1, 2, 2, 3, 4, 5, 6, 8], ["vision", "text", ""]
    jobs = [job(str(n), random.choice(sizes), submitted_at=float(n)) for n in range(count)]
    for index, item in enumerate(jobs):
        facts = {"priority": random.choice([0, 0, 0, 1, 2]), "team": random.choice(teams)}
        jobs[index] = replace(item, run_time=random.uniform(60, 7200), **facts)
    return jobs


@pytest.mark.slow
def test_a_long_queue_uses_the_machines_well():
    machines = [machine("a"), machine("b")]
    for seed in range(2):
        jobs = random_jobs(200, seed)
        work = sum(item.demand.gpus * (item.run_time or 0) for item in jobs) / 16
        best = max(work, *(item.run_time or 0 for item in jobs))
        assert _simulate(jobs, machines) <= 1.15 * best
    _simulate(jobs, machines, [Limit("H100", "vision", 8), Limit("H100", None, 14)])
