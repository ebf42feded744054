"""`hf://` with data sets, spaces, folders and files: what is listed, fetched and pinned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.hub import HubSource
from tests.weights.conftest import mirror, requested, tree
from tests.weights.hub_server import Hub, Repo

FILES = {
    "README.md": b"#",
    "train.csv": b"a,b",
    "sub/config.json": b"{}",
    "sub/deep/model.safetensors": os.urandom(3_000_000),
    "sub-2/other": b"not below",
    "a b/c#1.txt": b"names",
}
SUB = {name.removeprefix("sub/"): data for name, data in FILES.items() if name.startswith("sub/")}


@pytest.fixture(params=["o/r", "datasets/o/r", "spaces/o/r"])
def repository(request: pytest.FixtureRequest, here: Hub) -> str:
    """The name of a repository with the files, and with fewer at the tag `v1`."""
    here.repos.clear()
    repo = here.repos[request.param] = Repo()
    repo.commit({"sub/old": b"1", "train.csv": b"old"}, branch="v1")
    repo.commit({"sub/branch": b"1"}, branch="feature/x")
    repo.commit({"sub/pull": b"1"}, branch="refs/pr/1")
    repo.commit(FILES)
    return request.param


@pytest.mark.parametrize(
    ("at", "files"),
    [
        ("", FILES),
        ("@main", FILES),
        ("/sub", SUB),
        ("/sub/", SUB),
        ("@main/sub", SUB),
        ("/sub@main", SUB),
        ("/sub/deep", {"model.safetensors": FILES["sub/deep/model.safetensors"]}),
        ("/a b", {"c#1.txt": b"names"}),
        ("/train.csv", {"train.csv": b"a,b"}),
        ("/sub/config.json", {"config.json": b"{}"}),
        ("@v1/sub", {"old": b"1"}),
        ("/train.csv@v1", {"train.csv": b"old"}),
        ("@feature%2Fx/sub", {"branch": b"1"}),
        ("/sub@feature/x", {"branch": b"1"}),
        ("@refs/pr/1", {"sub/pull": b"1"}),
        ("/sub@refs%2Fpr%2F1", {"pull": b"1"}),
    ],
)
def test_what_is_mounted(
    here: Hub, repository: str, tmp_path: Path, at: str, files: dict[str, bytes]
) -> None:
    plan = WeightsPlan(f"hf://{repository}{at}", "/w", "k")
    folder = mirror(plan, tmp_path)
    assert tree(folder) == files
    here.settled_sent()
    assert {path.rpartition("/")[2] for path in here.sent_of} == {
        path.rpartition("/")[2] for path in files
    }


@pytest.mark.parametrize("at", ["/sub", "@main/sub", "/sub@main"])
def test_a_pinned_revision_of_a_folder(here: Hub, repository: str, tmp_path: Path, at: str) -> None:
    plan, repo = WeightsPlan(f"hf://{repository}{at}", "/w", "k"), here.repos[repository]
    commit = repo.branches["main"]
    repo.commit({"sub/new": b"1"})
    store = open_store("memory://")
    assert tree(mirror(plan, tmp_path / "a", revision=commit, store=store)) == SUB
    before = here.bodies()
    assert tree(mirror(plan, tmp_path / "b", revision=commit, store=store)) == SUB
    assert here.bodies() == before, "the store has it"
    assert tree(mirror(plan, tmp_path / "a")) == {"new": b"1"}


def test_patterns_are_relative_to_the_folder(repository: str, tmp_path: Path) -> None:
    plan = WeightsPlan(f"hf://{repository}/sub", "/w", "k", allow_patterns=("*.json",))
    assert tree(mirror(plan, tmp_path)) == {"config.json": b"{}"}


@pytest.mark.parametrize("at", ["/none", "/sub/none", "/none/none", "@v1/sub-2", "/su"])
def test_a_path_that_does_not_exist(repository: str, tmp_path: Path, at: str) -> None:
    with pytest.raises(WeightsError, match="has no file or folder '") as caught:
        mirror(WeightsPlan(f"hf://{repository}{at}", "/w", "k"), tmp_path)
    assert "Check the path" in caught.value.next_step


def test_a_branch_with_a_slash_that_is_not_encoded(repository: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="has no such revision") as caught:
        mirror(WeightsPlan(f"hf://{repository}@feature/x", "/w", "k"), tmp_path)
    assert "%2F" in caught.value.next_step


def test_only_the_folder_is_listed(here: Hub) -> None:
    commit = here.repos["o/r"].commit({**FILES, **{f"other/{n}": b"" for n in range(5000)}})
    assert len(HubSource(requested("hf://o/r/sub")).list_files().files) == len(SUB)
    assert here.asked["GET", f"/api/models/o/r/tree/{commit}/sub"] == 1
    assert not here.asked["GET", f"/api/models/o/r/tree/{commit}"]


def test_files_outside_the_folder_that_a_server_lists(here: Hub) -> None:
    here.repos["o/r"].commit(FILES)
    here.bad.more = [{"type": "file", "path": p, "size": 1, "oid": "0" * 40} for p in ("x", "su/b")]
    files = HubSource(requested("hf://o/r/sub")).list_files().files
    assert {file.path for file in files} == SUB.keys()
