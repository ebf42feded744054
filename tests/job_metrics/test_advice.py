"""Advice: every fault is named within a minute of its begin, and nothing else is named ever."""

from collections.abc import Callable, Iterable

import pytest

from prefect_bt.job_metrics.advice import Advice, advice_document, advise, find_advice
from prefect_bt.job_metrics.node_metrics import NodeMetrics, TrainingPoint
from tests.job_metrics.histories import (
    CREATED_AT,
    IDLE,
    checkpoint,
    event,
    job,
    node,
    outcome,
    points,
    status,
)

Values = Callable[[float], dict[str, float]]
FAULT = 400
"""When the fault of a test begins."""
STOPPED = {**IDLE, "stopped": 2.0}


def from_fault(values: dict[str, float]) -> Values:
    return lambda at: values if at > FAULT else {}


def until(nodes: Iterable[NodeMetrics], at: float) -> list[NodeMetrics]:
    """What the flow had read at a time, of nodes whose clocks are right."""
    limit, cut = CREATED_AT + at, list[NodeMetrics]()
    for whole in nodes:
        end = whole.find_start(limit + 0.1)
        columns = {name: values[:end] for name, values in whole.columns.items()}
        training = [point for point in whole.training if point.at <= limit]
        cut.append(
            NodeMetrics(
                whole.attempt, whole.rank, whole.facts, whole.times[:end], columns, training
            )
        )
    return cut


def replay(
    nodes: list[NodeMetrics], *, since: float = 0, to: float = 900
) -> list[tuple[float, Advice]]:
    """All advice, with the time at which the flow gets it; it asks every ten seconds."""
    times = [since + 10.0 * number for number in range(int((to - since) / 10) + 1)]
    return [(at, one) for at in times for one in find_advice(until(nodes, at), CREATED_AT + at)]


def train(step_time: float, *, end: float = FAULT, every: int = 1) -> list[TrainingPoint]:
    """Steps from second 60 to `end`; a report for each `every` steps."""
    return points(range(0, int((end - 60) / step_time) + 1, every), 60, step_time)


def check_named(nodes: list[NodeMetrics], kind: str, rank: int | None, *, within: float = 60):
    """The fault is named in time, and nothing is before."""
    found = replay(nodes, to=FAULT + within)
    assert found, "nothing is named"
    assert found[0][0] > FAULT
    assert {(one.kind.value, one.rank) for _, one in found} == {(kind, rank)}
    return found[0][1].text


@pytest.mark.parametrize("clock_error", [0, -7200])
@pytest.mark.parametrize("values", [IDLE, STOPPED])
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(("step_time", "every"), [(0.5, 1), (1, 10), (2, 1), (6, 1)])
def test_hang_is_named_within_a_minute(step_time, every, gpus, values, clock_error):
    nodes = [node(0, rank, 20, 900, values=from_fault(values), gpus=gpus) for rank in range(2)]
    nodes[0].training = train(step_time, every=every)
    text = check_named(nodes, "hang", None)
    last = nodes[0].training[-1].step
    assert f"no step since step {last} for" in text
    assert ("stopped by a signal" in text) == (values is STOPPED)


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param({**IDLE, "utilization": 0.6}, id="evaluation on the GPU"),
        pytest.param({**IDLE, "cpu": 1.0}, id="evaluation on the CPU"),
        pytest.param({**IDLE, "written": 5e7}, id="checkpoint being saved"),
        pytest.param({**IDLE, "blocked": 1.0}, id="waiting for a network file system"),
        pytest.param({**IDLE, "received": 2e5}, id="data pipeline waiting for the network"),
        pytest.param({**IDLE, "lines": 1.0}, id="printing"),
        pytest.param({**IDLE, "received": float("nan")}, id="network not known"),
        pytest.param({**IDLE, "cpu": float("nan")}, id="CPU not known"),
    ],
)
def test_time_without_a_step_is_no_hang_while_something_is_used(quiet: dict[str, float]):
    nodes = [node(0, rank, 20, 900, values=from_fault(IDLE), gpus=1) for rank in range(2)]
    nodes[1] = node(0, 1, 20, 900, values=from_fault(quiet), gpus=1)
    nodes[0].training = train(1)
    assert replay(nodes) == []


def test_job_that_goes_on_after_idle_pauses_does_not_hang_in_the_next_one():
    def values(at: float) -> dict[str, float]:
        return IDLE if at % 300 > 240 else {}  # 60 s in five minutes, say a remote evaluation

    still = node(0, 0, 20, 1500, values=values)
    still.training = [point for point in train(2, end=1500) if (point.at - CREATED_AT) % 300 <= 240]
    hangs = replay([still], to=1500)
    assert [at for at, _ in hangs if at > 310] == []  # only the first one is surprising


@pytest.mark.parametrize(
    "training",
    [
        pytest.param([], id="never reported a step"),
        pytest.param(points([1, 2], 60, 2), id="start-up: two steps"),
        pytest.param(
            [
                TrainingPoint(point.at, point.step, {**point.values, "total_steps": 341})
                for point in points(range(1, 342), 60, 1)
            ],
            id="all steps done",
        ),
        pytest.param(
            [*train(1), TrainingPoint(CREATED_AT + FAULT, 341, {"train_runtime": 340.0})],
            id="transformers told the end",
        ),
        pytest.param([TrainingPoint(CREATED_AT + at, None, {"loss": 1.0}) for at in range(60, 400)],
                     id="values without steps"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 2])
def test_idle_job_that_does_not_train_does_not_hang(training: list[TrainingPoint], ranks: int):
    nodes = [node(0, rank, 20, 900, values=from_fault(IDLE), gpus=1) for rank in range(ranks)]
    nodes[-1].training = training
    assert replay(nodes) == []


def test_interactive_session_and_start_up_are_named_nothing():
    def start_up(at: float) -> dict[str, float]:
        loading = {"cpu": 4.0, "utilization": 0.0, "memory_available": 15e9 - 2e7 * at}
        return loading if at < 500 else {**IDLE, "memory_available": 5e9}

    assert replay([node(0, rank, 0, 900, values=start_up, gpus=1) for rank in range(2)]) == []


@pytest.mark.parametrize("step_time", [0.5, 1, 6])
def test_rank_with_a_lower_rate_is_a_straggler(step_time: float):
    nodes = [node(0, rank, 20, 900) for rank in range(3)]
    for fast in nodes:
        fast.training = train(step_time, end=900)
    before = [point for point in nodes[1].training if point.at <= CREATED_AT + FAULT]
    first = before[-1].step
    assert first is not None
    slow = points(range(first, first + 200), FAULT, 2.5 * step_time)
    nodes[1].training = [*before, *slow[1:]]
    text = check_named(nodes, "straggler", 1)
    assert "Rank 1 is a straggler: it is " in text and "steps behind, and did" in text


def test_rank_whose_processes_are_stopped_now_and_then_is_a_straggler():
    def values(at: float) -> dict[str, float]:
        return STOPPED if at > FAULT and at % 25 < 10 else {}

    nodes = [node(0, 0, 20, 900), node(0, 1, 20, 900, values=values), node(0, 2, 20, 900)]
    nodes[0].training = train(1, end=900)
    assert "stopped its processes" in check_named(nodes, "straggler", 1)


def test_rank_with_idle_gpus_holds_up_the_others():
    nodes = [node(0, rank, 20, 900, gpus=2) for rank in range(3)]
    nodes[2] = node(0, 2, 20, 900, gpus=2, values=from_fault({"utilization": 0.05}))
    nodes[0].training = train(1, end=900)
    assert "its GPUs are 22 % busy, those of the other ranks at least 90 %" in check_named(
        nodes, "straggler", 2
    )


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"utilization": 0.0, "written": 5e7}, id="saves a checkpoint"),
        pytest.param({"utilization": 0.0, "blocked": 1.0}, id="waits for a file system"),
        pytest.param({"utilization": 0.5}, id="less busy"),
        pytest.param({"utilization": float("nan")}, id="not known"),
    ],
)
def test_rank_with_other_work_is_no_straggler(values: dict[str, float]):
    nodes = [node(0, rank, 20, 900, gpus=1) for rank in range(3)]
    nodes[0] = node(0, 0, 20, 900, gpus=1, values=from_fault(values))
    nodes[1].training = train(1, end=900)
    assert replay(nodes) == []


@pytest.mark.parametrize("late", [5, 30])
def test_ranks_in_step_have_no_straggler_although_one_is_read_later(late: float):
    nodes = [node(0, rank, 20, 900 - rank * late) for rank in range(2)]
    for rank, each in enumerate(nodes):
        each.training = train(2, end=900 - rank * late, every=5)
    for at in range(100, 900, 10):
        seen = [until(nodes[:1], at)[0], until(nodes[1:], at - late)[0]]
        assert find_advice(seen, CREATED_AT + at) == []


def test_both_ranks_stopped_is_no_straggler():
    nodes = [node(0, rank, 20, 900, values=lambda at: {"stopped": 1.0}) for rank in range(2)]
    assert replay(nodes) == []


@pytest.mark.parametrize(
    ("free", "size", "named"),
    [(0, 2e9, True), (4e8, 100e9, True), (5e9, 1e12, True), (15e9, 1e12, False), (3e8, 1e9, False)],
)
def test_full_disk(free: float, size: float, named: bool):
    disk = {"disk_free": free, "disk_size": size}
    nodes = [node(0, 0, 20, 900), node(0, 1, 20, 900, values=from_fault(disk))]
    if not named:
        assert replay(nodes) == []
        return
    assert "The disk of rank 1 is nearly full" in check_named(nodes, "disk", 1)


def test_little_memory_is_named_at_once():
    low = node(0, 0, 20, 900, values=from_fault({"memory_available": 3e8}))
    assert "Only 300.0 MB of 16.0 GB memory are left" in check_named([low], "memory", 0)


@pytest.mark.parametrize(
    ("bytes_per_second", "named"), [(2e7, True), (1e6, False)], ids=["leak", "slow leak"]
)
def test_memory_that_falls_steadily_is_named_before_it_ends(bytes_per_second: float, named: bool):
    def values(at: float) -> dict[str, float]:
        noise = 3e7 * ((at * 7919) % 13 - 6) / 6
        return {"memory_available": 14e9 - max(0, at - 100) * bytes_per_second + noise}

    leaking = node(0, 0, 20, 700, values=values)
    leaking.training = train(1, end=700)
    found = replay([leaking], to=700)
    assert bool(found) == named
    if named:
        at, advice = found[0]
        assert advice.kind == "memory" and at < 500  # it ends at 800
        assert "it runs out in" in advice.text


def test_memory_that_goes_up_and_down_is_not_named():
    def values(at: float) -> dict[str, float]:
        return {"memory_available": 8e9 - at % 120 * 5e7}

    nodes = [node(0, 0, 20, 900, values=values)]
    nodes[0].training = train(1, end=900)
    assert replay(nodes) == []


def test_gpus_that_wait_for_the_cpus_are_named():
    starved = node(0, 0, 20, 900, gpus=2, values=from_fault({"utilization": 0.1, "cpu": 3.9}))
    starved.training = train(1, end=900)
    found = replay([starved], to=FAULT + 150)
    assert [(one.kind.value, one.rank) for _, one in found][:1] == [("input_bound", 0)]
    assert "CPUs are" in found[0][1].text


@pytest.mark.parametrize("gpus", [0, 1])
def test_busy_cpus_of_a_job_without_gpus_or_without_steps_are_no_fault(gpus: int):
    saturated = node(0, 0, 20, 900, gpus=gpus, values=lambda at: {"utilization": 0.1, "cpu": 3.9})
    saturated.training = train(1, end=900) if not gpus else []
    assert replay([saturated]) == []


def failed_job(interval: int, cost: float):
    """Two failures; steps of 2 s, a checkpoint of `cost` seconds each `interval` steps."""
    listed, training, at = [], [], 20.0
    for step in range(1, 481):
        at += 2
        if step % interval == 0:
            listed.append(checkpoint(0, f"checkpoint-{step}", at + cost / 2, step=step))
            at += cost
        training.append(TrainingPoint(CREATED_AT + at, step, {}))
    failures = [outcome(0, "failed", at + 5, status(0, 20, at)), outcome(1, "failed", at + 10)]
    events = [event("deploying", 10, 0), event("running", 20, 0), event("failed", at + 20, 0)]
    return job(events, failures, [node(0, 0, 20, 30, training=training)], listed)


@pytest.mark.parametrize(
    ("interval", "best"), [(240, "44 s (22 steps)"), (20, ""), (4, "49 s (24 steps)")]
)
def test_checkpoint_interval_far_from_the_best_is_named(interval: int, best: str):
    texts = [one.text for one in advise(failed_job(interval, 2.0))]
    if not best:
        assert texts == []
        return
    assert len(texts) == 1 and f"about every {best} instead of every" in texts[0]
    assert "2 failures in" in texts[0]


@pytest.mark.parametrize("cost", [0.0, 0.05])
def test_checkpoint_whose_cost_is_not_known_gives_no_advice(cost: float):
    assert advise(failed_job(240, cost)) == []


def test_advice_of_a_running_job_and_its_document():
    low = node(0, 0, 20, 900, values=lambda at: {"memory_available": 1e8})
    running = job([event("deploying", 5, 0), event("running", 20, 0)], [], [low], now=900)
    [document] = advice_document(advise(running))
    assert document["kind"] == "memory" and document["rank"] == 0
    assert document["at"] == "2023-11-14T22:28:20+00:00"
    ended = job([event("running", 20, 0), event("completed", 900, 0)], [], [low])
    assert advise(ended) == []
