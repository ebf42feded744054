"""Which checkpoints a policy lets go."""

import pytest

from prefect_bt.checkpoints.retention.policy import select_prunable
from prefect_bt.ledger.records import RetentionPolicy


def steps(*numbers, stem="checkpoint-"):
    return [f"{stem}{number}" for number in numbers]


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (RetentionPolicy(), steps(5, 10, 15, 20, 100)),
        (RetentionPolicy(keep_last=2), steps(20, 100)),
        (RetentionPolicy(keep_last=9), steps(5, 10, 15, 20, 100)),
        (RetentionPolicy(keep_last=1, keep_every=10), steps(10, 20, 100)),
        (RetentionPolicy(keep_every=15), steps(15, 100)),
        (RetentionPolicy(keep_last=0), steps(100)),
        (RetentionPolicy(keep_every=0), steps(100)),
        (RetentionPolicy(keep_last=-3, keep_every=-1), steps(100)),
    ],
)
def test_what_stays_of_a_series(policy, left):
    names = steps(100, 5, 20, 15, 10)
    assert set(names) - set(select_prunable(names, policy)) == set(left)


def test_steps_are_ordered_as_numbers():
    assert select_prunable(steps(9, 10, 100), RetentionPolicy(keep_last=1)) == tuple(
        sorted(steps(9, 10))
    )


def test_every_series_is_counted_by_itself():
    names = [*steps(1, 2), *steps(1, 2, stem="v0/checkpoint-"), *steps(7, stem="epoch_")]
    assert select_prunable(names, RetentionPolicy(keep_last=1)) == (
        "checkpoint-1",
        "v0/checkpoint-1",
    )


def test_a_name_without_a_step_stays():
    names = [".", "final", "runs", *steps(1, 2)]
    assert select_prunable(names, RetentionPolicy(keep_last=1)) == ("checkpoint-1",)


def test_a_name_given_twice_counts_once():
    assert select_prunable([*steps(1, 2), *steps(2)], RetentionPolicy(keep_last=2)) == ()


def test_only_what_was_given_goes():
    assert select_prunable([], RetentionPolicy(keep_last=1)) == ()
