"""A user's patch of a Job."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from prefect_bt.substrates.kubernetes.json_merge import merge

POD: dict[str, Any] = {
    "tolerations": [{"key": "a"}],
    "containers": [
        {"name": "agent", "image": "x", "env": [{"name": "HOME", "value": "/tmp"}]},
        {
            "name": "commands",
            "volumeMounts": [
                {"name": "cache", "mountPath": "/a", "subPath": "a"},
                {"name": "cache", "mountPath": "/b", "subPath": "b"},
            ],
        },
    ],
}
MOUNTS = POD["containers"][1]["volumeMounts"]


def commands(**patch: object) -> Any:
    return merge(POD, {"containers": [{"name": "commands", **patch}]})["containers"][1]


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"a": None, "b": None}, {}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ([{"name": "x"}], [], []),
        ([], [{"name": "x"}], [{"name": "x"}]),
        ([{"name": "x", "a": 1}, {"name": "y"}], [{"name": "y", "a": 2}], None),
        (1, None, None),
    ],
)
def test_merges(target: Any, patch: Any, merged: Any) -> None:
    before = copy.deepcopy((target, patch))
    if merged is None and isinstance(target, list):
        merged = [{"name": "x", "a": 1}, {"name": "y", "a": 2}]
    assert merge(target, patch) == merged
    assert (target, patch) == before, "neither is changed"


def test_containers_are_merged_by_name_and_others_come_last() -> None:
    merged = merge(POD, {"containers": [{"name": "z"}, {"name": "agent", "image": "y"}]})
    assert [one["name"] for one in merged["containers"]] == ["agent", "commands", "z"]
    assert merged["containers"][0] == {**POD["containers"][0], "image": "y"}


def test_tolerations_have_no_names_and_are_replaced() -> None:
    assert merge(POD, {"tolerations": [{"key": "b"}]})["tolerations"] == [{"key": "b"}]
    assert merge(POD, {"tolerations": []})["tolerations"] == []


def test_mounts_of_one_volume_are_distinguished_by_their_paths() -> None:
    more = [{"name": "cache", "mountPath": "/c"}, {"name": "cache", "mountPath": "/d"}]
    assert commands(volumeMounts=more)["volumeMounts"] == [*MOUNTS, *more]
    changed = commands(volumeMounts=[{"name": "cache", "mountPath": "/b", "readOnly": True}])
    assert changed["volumeMounts"] == [MOUNTS[0], {**MOUNTS[1], "readOnly": True}]
