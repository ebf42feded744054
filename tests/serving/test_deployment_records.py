"""The records of a deployment: numbers are unique, the first word stands, wishes come in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.serving.deployment_records import (
    NO_REVISION,
    DeploymentLedger,
    ReadinessVerdict,
    Revision,
)

NAME = "stories v1/é"


@pytest.fixture
def deployments(tmp_path: Path) -> DeploymentLedger:
    return DeploymentLedger(open_ledger(str(tmp_path / "store")))


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


def test_what_was_written_is_read(deployments: DeploymentLedger) -> None:
    made = deployments.ensure_deployment(NAME)
    assert deployments.ensure_deployment(NAME) == made, "the first stands"
    assert [one.name for one in deployments.list_deployments()] == [NAME]
    assert deployments.add_revision(NAME, revision) == revision(1)
    assert deployments.add_revision(NAME, revision).number == 2
    assert deployments.list_revisions(NAME) == [revision(1), revision(2)]
    deployments.bind_job(NAME, 1, "job0001")
    deployments.bind_job(NAME, 1, "job0002")
    assert (deployments.find_job_id(NAME, 1), deployments.find_job_id(NAME, 2)) == ("job0001", "")


def test_two_at_once_never_share_a_number(deployments: DeploymentLedger) -> None:
    deployments.ensure_deployment(NAME)
    with ThreadPoolExecutor(8) as pool:
        numbers = list(
            pool.map(lambda _: deployments.add_revision(NAME, revision).number, range(24))
        )
        moves = list(
            pool.map(lambda n: deployments.set_desired_revision(NAME, n, why="x").revision, numbers)
        )
    assert sorted(numbers) == list(range(1, 25))
    assert sorted(moves) == sorted(
        move.revision for move in deployments.list_desired_revisions(NAME)
    )


def test_the_first_verdict_of_an_attempt_stands(deployments: DeploymentLedger) -> None:
    deployments.ensure_deployment(NAME)
    first = ReadinessVerdict(1, 0, ready=False, sentence="out of memory", at=1.0)
    assert deployments.record_verdict(NAME, first) == first
    assert (
        deployments.record_verdict(NAME, ReadinessVerdict(1, 0, ready=True, sentence="", at=2.0))
        == first
    )
    assert not deployments.was_ready(NAME, 1)
    deployments.record_verdict(NAME, ReadinessVerdict(1, 1, ready=True, sentence="", at=3.0))
    deployments.record_verdict(NAME, ReadinessVerdict(11, 0, ready=True, sentence="", at=3.0))
    assert [one.attempt for one in deployments.list_verdicts(NAME, 1)] == [0, 1]
    assert deployments.was_ready(NAME, 1)


def test_the_last_wish_counts(deployments: DeploymentLedger) -> None:
    deployments.ensure_deployment(NAME)
    assert deployments.get_desired_revision(NAME) == NO_REVISION
    for number in (1, 2, 1, NO_REVISION):
        deployments.set_desired_revision(NAME, number, why="x")
        assert deployments.get_desired_revision(NAME) == number


def test_missing_deployments_and_revisions_are_named(deployments: DeploymentLedger) -> None:
    deployments.ensure_deployment("there")
    with pytest.raises(NotFoundError, match="there"):
        deployments.get_deployment("elsewhere")
    with pytest.raises(NotFoundError, match="There are: none"):
        deployments.get_revision("there", 3)
