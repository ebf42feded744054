"""Ranks that still run when another has exited with 0, against a substrate that keeps time."""

import pytest

from prefect_bt.attempts.gang_policy import RESPONSE_TIMEOUT
from prefect_bt.attempts.success_summary import list_warnings
from prefect_bt.ledger.states import JobState
from tests.attempts.simulated import Script, run


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("patience", [0.0, 60.0, 600.0])
def test_an_inactive_rank_is_stopped_and_named_after_the_patience(
    patience: float, silent: bool
) -> None:
    idle = Script(seconds=None, quiet=True, silent=silent)
    substrate, gang = run(Script(seconds=5), idle, Script(seconds=7), patience=patience)
    outcome = gang.make_outcome()
    assert outcome.state is JobState.COMPLETED
    assert patience <= substrate.clock.now - 1005 < patience + 5
    assert outcome.message == (
        "Ranks 0 and 2 exited with 0, rank 1 was stopped (inactive) and their checkpoints are "
        "committed."
    )
    (warning,) = list_warnings(outcome.nodes)
    assert warning.startswith("Rank 1 was stopped ")
    assert "inactive since 00:16:40 UTC" in warning


def test_a_rank_that_still_works_is_never_stopped() -> None:
    substrate, gang = run(Script(seconds=5), Script(seconds=90_000))
    outcome = gang.make_outcome()
    assert substrate.nodes[1].stops == []
    assert outcome.message == "All ranks exited with 0 and their checkpoints are committed."
    assert list_warnings(outcome.nodes) == []


def test_quiet_ranks_run_on_while_none_has_ended() -> None:
    substrate, _ = run(Script(seconds=200, quiet=True), Script(seconds=200, quiet=True))
    assert [node.stops for node in substrate.nodes] == [[], []]


def test_a_straggler_that_answers_no_stop_is_given_up() -> None:
    deaf = Script(seconds=None, quiet=True, deaf=True)
    substrate, _ = run(Script(seconds=5), deaf, patience=60.0)
    assert substrate.nodes[1].stops[-1] == ("straggler", True)
    assert substrate.nodes[1].given_up == 1
    given_up_after = 5 + 60 + 30 + RESPONSE_TIMEOUT
    assert given_up_after < substrate.clock.now - 1000 < given_up_after + 5
