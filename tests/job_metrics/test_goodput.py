"""Every second of a job is in one class, and lost steps are those that were done again."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_bt.job_metrics.goodput import goodput_document, measure_goodput
from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics, TrainingPoint
from prefect_bt.ledger.records import Cause, NodePhase
from tests.job_metrics.histories import (
    CREATED_AT,
    IDLE,
    STATES,
    checkpoint,
    event,
    job,
    node,
    outcome,
    points,
    seconds,
    status,
)

BEGUN = [
    event("pending", 0),
    event("created", 10),
    event("deploying", 15, 0),
    event("running", 20, 0),
]
AT_20, AT_40 = (checkpoint(0, f"checkpoint-{step}", 30 + step, step=step) for step in (20, 40))


def killed_and_resumed(clock_error: float = 0.0) -> JobMetrics:
    """Steps of 1 s, a report each 10 steps: 57 steps, of which the checkpoint has 40."""
    return job(
        [
            *BEGUN,
            event("created", 90, 0),
            event("deploying", 92, 1),
            event("running", 95, 1),
            event("completed", 170, 1),
        ],
        [
            outcome(0, "failed", 89, status(0, 20, 87, clock_error=clock_error), newest=AT_40),
            outcome(1, "completed", 169, status(0, 95, 165, clock_error=clock_error)),
        ],
        [
            node(0, 0, 20, 87, training=points(range(10, 51, 10), 40, 1), clock_error=clock_error),
            node(
                1, 0, 95, 165, training=points(range(50, 101, 10), 115, 1), clock_error=clock_error
            ),
        ],
        [AT_20, AT_40],
    )


@pytest.mark.parametrize("clock_error", [0, -86_400, 7200])
def test_classes_of_a_job_that_was_killed_and_resumed(clock_error: float):
    goodput = measure_goodput(killed_and_resumed(clock_error))
    assert seconds(goodput) == {
        "queued": 10,
        "mirroring": 5,
        "provisioning": 5 + 3,
        "restoring": 10 + 10,
        "training": 40 + 60,
        "lost": 17,  # step 40 was reached at 70, the commands ended at 87
        "flushing": 2 + 5,
        "retry_delay": 3,
    }
    assert goodput.lost_steps == 10
    assert goodput.kept_fraction == pytest.approx(100 / 170)
    assert [(p.time_class, p.attempt) for p in goodput.phases][-4:] == [
        ("provisioning", 1),
        ("restoring", 1),
        ("training", 1),
        ("flushing", 1),
    ]


def test_document_names_every_class_and_the_times_of_each_phase():
    document = goodput_document(measure_goodput(killed_and_resumed()))
    assert set(document["seconds"]) == {
        "queued", "mirroring", "provisioning", "restoring", "training", "lost", "stalled",
        "flushing", "retry_delay",
    }  # fmt: skip
    assert document["phases"][1] == {
        "class": "mirroring",
        "attempt": None,
        "started_at": "2023-11-14T22:13:30+00:00",
        "ended_at": "2023-11-14T22:13:35+00:00",
        "seconds": 5,
    }
    assert document["wall_clock"] == sum(document["seconds"].values()) == 170


@pytest.mark.parametrize(
    ("newest", "start", "lost_seconds", "lost_steps"),
    [
        pytest.param(None, 10, 50, 50, id="no checkpoint"),
        pytest.param(AT_40, 50, 10, 10, id="resumed at the checkpoint"),
        pytest.param(AT_40, 30, 30, 30, id="resumed at an older step than the newest"),
        pytest.param(AT_40, 70, 0, 0, id="resumed later than the last report"),
    ],
)
def test_lost_is_what_the_next_attempt_did_again(newest, start, lost_seconds, lost_steps):
    told = job(
        [*BEGUN, event("created", 80, 0), event("deploying", 80, 1), event("running", 80, 1),
         event("stopped", 160, 1)],
        [
            outcome(0, "failed", 80, status(0, 20, 80), newest=newest),
            outcome(1, "stopped", 160, status(0, 80, 160)),
        ],
        [
            node(0, 0, 20, 80, training=points(range(10, 51, 10), 40, 1)),
            node(1, 0, 80, 160, training=points(range(start, 101, 10), 100, 1)),
        ],
        [newest] if newest else [],
    )  # fmt: skip
    goodput = measure_goodput(told)
    assert seconds(goodput).get("lost", 0) == lost_seconds
    assert goodput.lost_steps == lost_steps


def test_steps_that_two_attempts_lost_to_an_older_checkpoint_count_for_both():
    def attempt(number: int, steps: range) -> NodeMetrics:
        begin = 20 + 100 * number
        return node(number, 0, begin, begin + 60, training=points(steps, begin + 10, 1))

    told = job(
        [*BEGUN, event("created", 80, 0), event("deploying", 120, 1), event("created", 180, 1),
         event("deploying", 220, 2), event("completed", 300, 2)],
        [
            outcome(0, "failed", 80, status(0, 20, 80), newest=AT_20),
            outcome(1, "failed", 180, status(0, 120, 180), newest=AT_40),
            outcome(2, "completed", 300, status(0, 220, 280)),
        ],
        [attempt(0, range(1, 31)), attempt(1, range(21, 46)), attempt(2, range(11, 41))],
        [],
    )  # fmt: skip
    # Attempt 2 began with step 11: attempt 0 lost 20 of its 30 steps, attempt 1 all of its 25.
    assert measure_goodput(told).lost_steps == 20 + 25


@pytest.mark.parametrize(("end", "lost"), [("failed", 17), ("stopped", None), ("completed", None)])
def test_last_attempt_loses_what_no_checkpoint_kept_only_if_it_failed(end: str, lost: float):
    told = killed_and_resumed().history
    first = outcome(0, end, 89, status(0, 20, 87), newest=AT_40)
    nodes = [node(0, 0, 20, 87, training=points(range(10, 51, 10), 40, 1))]
    metrics = job([*BEGUN, event(end, 90, 0)], [first], nodes, told.checkpoints)
    assert seconds(measure_goodput(metrics)).get("lost") == lost


@pytest.mark.parametrize(
    ("newest", "lost"), [(checkpoint(0, "last", 60), 27), (None, 67), (AT_20, 37)]
)
def test_without_steps_the_last_write_of_the_newest_checkpoint_counts(newest, lost: float):
    first = outcome(0, "failed", 89, status(0, 20, 87), newest=newest)
    metrics = job([*BEGUN, event("failed", 90, 0)], [first], [], [newest] if newest else [])
    assert seconds(measure_goodput(metrics))["lost"] == pytest.approx(lost, abs=0.01)


def test_checkpoint_that_an_earlier_attempt_wrote_keeps_nothing_of_a_later_one():
    told = job(
        [*BEGUN, event("created", 90, 0), event("deploying", 90, 1), event("failed", 150, 1)],
        [
            outcome(0, "failed", 90, status(0, 20, 90), newest=AT_40),
            outcome(1, "failed", 150, status(0, 100, 150), newest=AT_40),
        ],
        [],
        [AT_40],
    )
    assert seconds(measure_goodput(told))["lost"] == pytest.approx(20 + 50, abs=0.01)


def test_wait_after_a_preemption_is_queued_and_after_a_failure_a_delay():
    told = job(
        [*BEGUN, event("pending", 60), event("created", 100), event("deploying", 110, 1),
         event("failed", 120, 1), event("created", 150), event("deploying", 160, 2)],
        [
            outcome(0, "stopped", 55, status(0, 20, 50), cause=Cause.PREEMPTED),
            outcome(1, "failed", 118),
        ],
        now=161,
    )  # fmt: skip
    assert seconds(measure_goodput(told)) == {
        "queued": 10 + 40,
        "mirroring": 5 + 10,
        "provisioning": 5 + 8 + 1,
        "lost": 30,
        "flushing": 10 + 2,
        "retry_delay": 40,
    }


def test_lost_machine_is_stalled_from_its_last_sign_of_life():
    gone = status(0, 20, 500, phase=NodePhase.LOST, active=60)
    told = job(
        [*BEGUN, event("created", 520, 0), event("deploying", 521, 1)],
        [outcome(0, "failed", 510, gone, newest=AT_20)],
        [node(0, 0, 20, 70)],
        [AT_20],
        now=521,
    )
    counted = seconds(measure_goodput(told))
    assert (counted["stalled"], counted["retry_delay"]) == (440, 11)


@pytest.mark.parametrize(
    ("changed", "stalled"),
    [
        ({}, 100),
        ({"cpu": 0.2}, None),
        ({"lines": 1}, None),
        ({"received": 2e5}, None),
        ({"written": 2e5}, None),
        ({"utilization": 0.5}, None),
        ({"cpu": math.nan}, None),
    ],
)
def test_stalled_is_a_time_in_which_no_rank_did_anything(changed: dict[str, float], stalled):
    def values(at: float) -> dict[str, float]:
        return {**IDLE, **changed} if 100 < at <= 200 else {}

    nodes = [
        node(0, 0, 20, 300, values=lambda at: IDLE if 50 < at <= 250 else {}, gpus=2),
        node(0, 1, 20, 300, values=values, gpus=2),
    ]
    told = job(BEGUN, [], nodes, now=300)
    assert seconds(measure_goodput(told)).get("stalled") == stalled


def test_step_within_an_idle_time_divides_it():
    still = node(0, 0, 20, 300, values=lambda at: IDLE if 100 < at <= 200 else {})
    still.training = points([1, 2, 3], 90, 30)
    told = job(BEGUN, [], [still], now=300)
    assert seconds(measure_goodput(told)).get("stalled") is None


def test_rank_without_metrics_may_have_been_busy():
    still = node(0, 0, 20, 300, values=lambda at: IDLE)
    ranks = [status(0, 20, 300), status(1, 20, 300)]
    told = job(
        [*BEGUN, event("completed", 300, 0)], [outcome(0, "completed", 300, *ranks)], [still]
    )
    assert "stalled" not in seconds(measure_goodput(told))


TIMES = st.floats(-500, 2000, allow_nan=False)


@st.composite
def arbitrary_jobs(draw: st.DrawFn) -> JobMetrics:
    numbers = st.integers(0, 3)
    events = [
        event(draw(st.sampled_from(sorted(STATES))), draw(TIMES), draw(st.none() | numbers))
        for _ in range(draw(st.integers(0, 9)))
    ]
    listed = [
        checkpoint(0, "checkpoint-3", draw(TIMES), step=3),
        checkpoint(1, "last", draw(TIMES)),
    ]
    outcomes = [
        outcome(
            number,
            draw(st.sampled_from(["completed", "failed", "stopped", "deploy_failed"])),
            draw(TIMES),
            *(
                status(
                    rank,
                    draw(st.none() | TIMES),
                    draw(st.none() | TIMES),
                    clock_error=draw(st.sampled_from([0, -1e6, 30, 1e8])),
                    phase=draw(st.sampled_from(list(NodePhase))),
                    active=draw(st.none() | TIMES),
                )
                for rank in range(draw(st.integers(0, 2)))
            ),
            newest=draw(st.sampled_from([None, *listed])),
            cause=draw(st.sampled_from([None, Cause.PREEMPTED])),
        )
        for number in range(draw(st.integers(0, 4)))
    ]
    nodes = [
        node(
            number,
            rank,
            start := draw(TIMES),
            start + draw(st.floats(0, 400)),
            values=draw(
                st.sampled_from([lambda at: {}, lambda at: IDLE, lambda at: {"cpu": math.nan}])
            ),
            training=[
                TrainingPoint(CREATED_AT + draw(TIMES), draw(st.none() | st.integers(0, 50)), {})
                for _ in range(draw(st.integers(0, 6)))
            ],
            clock_error=draw(st.sampled_from([0, -1e6, 30])),
        )
        for number, rank in draw(st.lists(st.tuples(numbers, st.integers(0, 1)), max_size=4))
    ]
    return job(events, outcomes, nodes, draw(st.sampled_from([[], listed])), now=draw(TIMES))


@given(arbitrary_jobs())
def test_classes_add_up_for_arbitrary_records(metrics: JobMetrics):
    goodput = measure_goodput(metrics)
    assert goodput.wall_clock >= 0
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.wall_clock, abs=1e-6)
    at = metrics.history.record.created_at
    for phase in goodput.phases:
        assert phase.start == at
        assert phase.end > at
        at = phase.end
    assert goodput.lost_steps >= 0
