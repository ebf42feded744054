"""The records of a deployment: numbers are unique, the first word stands, wishes come in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_bt.errors import NotFoundError
from prefect_bt.jobs import open_ledger
from prefect_bt.serving.deployments import NONE, Deployments, Revision, Verdict

NAME = "stories v1/é"


@pytest.fixture
def deployments(tmp_path: Path) -> Deployments:
    return Deployments(open_ledger(str(tmp_path / "store")))


def revision(number: int) -> Revision:
    return Revision(
        number=number,
        at=float(number),
        engine="transformers",
        kind="lora",
        models=("checkpoint-1", "checkpoint-2"),
        checkpoints=(("abc1234", "checkpoint-1"), ("abc1234", "v0/checkpoint-2")),
        gate={"prompts": [{"prompt": "x", "contains": "y"}]},
    )


def test_what_was_written_is_read(deployments: Deployments) -> None:
    made = deployments.ensure(NAME)
    assert deployments.ensure(NAME) == made, "the first stands"
    assert [one.name for one in deployments.all()] == [NAME]
    assert deployments.add(NAME, revision) == revision(1)
    assert deployments.add(NAME, revision).number == 2
    assert deployments.revisions(NAME) == [revision(1), revision(2)]
    deployments.bind_job(NAME, 1, "job0001")
    deployments.bind_job(NAME, 1, "job0002")
    assert (deployments.job_of(NAME, 1), deployments.job_of(NAME, 2)) == ("job0001", "")


def test_two_at_once_never_share_a_number(deployments: Deployments) -> None:
    deployments.ensure(NAME)
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: deployments.add(NAME, revision).number, range(24)))
        moves = list(pool.map(lambda n: deployments.move(NAME, n, why="x").revision, numbers))
    assert sorted(numbers) == list(range(1, 25))
    assert sorted(moves) == sorted(move.revision for move in deployments.moves(NAME))


def test_the_first_verdict_of_an_attempt_stands(deployments: Deployments) -> None:
    deployments.ensure(NAME)
    first = Verdict(1, 0, ready=False, sentence="out of memory", at=1.0)
    assert deployments.judge(NAME, first) == first
    assert deployments.judge(NAME, Verdict(1, 0, ready=True, sentence="", at=2.0)) == first
    assert not deployments.was_ready(NAME, 1)
    deployments.judge(NAME, Verdict(1, 1, ready=True, sentence="", at=3.0))
    deployments.judge(NAME, Verdict(11, 0, ready=True, sentence="", at=3.0))
    assert [one.attempt for one in deployments.verdicts(NAME, 1)] == [0, 1]
    assert deployments.was_ready(NAME, 1)


def test_the_last_wish_counts(deployments: Deployments) -> None:
    deployments.ensure(NAME)
    assert deployments.wanted(NAME) == NONE
    for number in (1, 2, 1, NONE):
        deployments.move(NAME, number, why="x")
        assert deployments.wanted(NAME) == number


def test_what_is_not_there_is_said(deployments: Deployments) -> None:
    deployments.ensure("there")
    with pytest.raises(NotFoundError, match="there"):
        deployments.get("elsewhere")
    with pytest.raises(NotFoundError, match="There are: none"):
        deployments.revision("there", 3)
