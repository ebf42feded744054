"""Weights in a plan: the sources that are refused, their keys and their revisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_bt.errors import DefinitionError
from prefect_bt.planning.plan import VolumeKind
from prefect_bt.planning.planner import plan_gang, plan_weights, plan_weights_sources
from prefect_bt.planning.weights_validation import validate_weights

from .laptop import CONTEXT, problems, project


@pytest.mark.parametrize(
    "source",
    [
        *("hf://a/", "hf://a//b", "hf://@main", "hf://a/b/", "hf://a/b//c", "hf://a/b/../c"),
        *("hf://datasets/", "hf://datasets/a/b/", "hf://buckets/a/b", "hf://a/b@v1//c"),
    ],
)
def test_refuses_names_that_are_no_repository(source: str) -> None:
    given = project(weights=[{"source": source, "mount_location": "/w"}])
    assert "is not a repository; write hf://owner/repo" in problems(given)[0]


@pytest.mark.parametrize(
    "source",
    [
        *("hf://a/b", "hf://single", "hf://a/b@refs/pr/1", "hf://a/b@v@2", "hf://a/b/c"),
        *("hf://datasets/a/b@v1", "hf://spaces/a/b", "hf://a/b@v1/c/d", "hf://a/b/c@v1"),
    ],
)
def test_accepts_a_repository(source: str) -> None:
    plan = plan_gang(project(weights=[{"source": source, "mount_location": "/w"}]), CONTEXT)
    assert [one.source for one in plan.weights] == [source]


@pytest.mark.parametrize(
    "source", ["file:///data/models/base", "bt://project", "bt://project@abc1234/checkpoint-10"]
)
def test_folders_and_checkpoints_of_this_store_are_weights_too(source: str) -> None:
    """Ours: Baseten has neither scheme. tests/weights shows that they are mirrored and mounted."""
    plan = plan_gang(project(weights=[{"source": source, "mount_location": "/w"}]), CONTEXT)
    assert [weights.source for weights in plan.weights] == [source]
    assert [v.target for v in plan.nodes[0].volumes if v.read_only] == ["/w"]


def test_problems_of_weights_name_the_source() -> None:
    sources = [
        {"source": "hf://a/b", "mount_location": "/w"},
        {"source": "hf://a/b@", "mount_location": "/w"},
        {"source": "s3://b/p", "mount_location": "/b10/workspace"},
        {"source": "s3://b/p", "mount_location": "/fine"},
    ]
    given = project(weights=sources, compute={"node_count": 0})
    assert [each.partition(";")[0] for each in validate_weights(given.job)] == [
        "weights[1].source 'hf://a/b@' has no revision after the @",
        "weights[1].mount_location is '/w', which weights[0].mount_location uses already",
        "weights[2].mount_location is '/b10/workspace', which the workspace uses already",
    ]


def test_a_node_mounts_the_revision_that_was_mirrored() -> None:
    given = project(
        weights=[
            {"source": "hf://a/b", "mount_location": "/w"},
            {"source": "hf://a/c", "mount_location": "/x"},
        ]
    )
    one, two = (weights.key for weights in plan_weights(given.job))
    plan = plan_gang(given, replace(CONTEXT, revisions={one: "rev-1"}))
    volumes = [v.key for v in plan.nodes[0].volumes if v.kind is VolumeKind.WEIGHTS]
    assert volumes == [f"{one}-rev-1", two]


def test_a_source_outside_of_a_job_has_the_key_that_it_has_in_one() -> None:
    source = {
        "source": "s3://bucket/prefix",
        "allow_patterns": ["*.bin"],
        "auth_secret_name": "keys",
    }
    [inside] = plan_weights(project(weights=[{**source, "mount_location": "/w"}]).job)
    [outside, plain] = plan_weights_sources([source, "s3://bucket/prefix"])
    assert replace(inside, mount_location=outside.mount_location) == outside
    assert plain.key != outside.key
    with pytest.raises(DefinitionError, match="write gs://"):
        plan_weights_sources(["gcs://bucket/prefix"])
