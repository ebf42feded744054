"""Check which folders are packed, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.roots import plan_layout

from .conftest import MakeTree


@pytest.fixture
def repo(tmp_path: Path, make_tree: MakeTree) -> Path:
    """A repository, with other folders beside it."""
    names = ("other/data/x", "other/README.md/x", "a/shared/x", "b/shared/x")
    make_tree(tmp_path, dict.fromkeys(names, ""))
    files = ("train/config.py", "common/lib.py", "data/big.bin", "README.md")
    return make_tree(tmp_path / "repo", dict.fromkeys(files, ""))


def test_no_workspace_packs_the_source_folder_itself(repo: Path) -> None:
    layout = plan_layout(repo / "train")
    assert (layout.root, layout.externals, layout.excluded) == (repo / "train", (), frozenset())
    assert not layout.gathered


def test_an_empty_workspace_root_counts_as_none(repo: Path) -> None:
    assert not plan_layout(repo / "train", workspace_root="").gathered


@pytest.mark.parametrize("spelling", ["..", "../", "../../repo", "../common/..", "{repo}"])
def test_a_root_is_absolute_or_starts_at_the_config_folder(repo: Path, spelling: str) -> None:
    layout = plan_layout(repo / "train", workspace_root=spelling.format(repo=repo))
    assert layout.root == repo
    assert layout.gathered


def test_the_root_may_be_the_config_folder_itself(repo: Path) -> None:
    assert plan_layout(repo / "train", workspace_root=".").root == repo / "train"


@pytest.mark.parametrize("spelling", ["../common", "sub", "../train2"])
def test_a_root_that_does_not_contain_the_config_is_refused(repo: Path, spelling: str) -> None:
    with pytest.raises(WorkspaceError, match="must be inside workspace_root") as caught:
        plan_layout(repo / "train", workspace_root=spelling)
    assert caught.value.path == str((repo / "train" / spelling).resolve())


def test_excludes_without_a_root_take_the_config_folder(repo: Path) -> None:
    layout = plan_layout(repo, exclude_dirs=["data"])
    assert layout.root == repo
    assert layout.excluded == {"data"}


def test_excludes_are_relative_to_the_config_folder_and_may_be_files(repo: Path) -> None:
    layout = plan_layout(
        repo / "train",
        workspace_root="..",
        exclude_dirs=["../data", "../README.md", str(repo / "common")],
    )
    assert layout.excluded == {"data", "README.md", "common"}
    assert layout.warnings == ()


def excluding(*items: str) -> dict[str, Any]:
    return {"workspace_root": "..", "exclude_dirs": items}


@pytest.mark.parametrize(
    ("folder", "options", "why"),
    [
        ("absent", {}, "does not exist or is not a folder"),
        ("train", excluding("../common/lib.py"), "not a direct child"),
        ("train", excluding(".."), "not a direct child"),
        ("train", excluding("../train/config.py"), "not a direct child"),
        ("train", excluding("../../elsewhere"), "not inside"),
        ("train", excluding("/tmp"), "not inside"),
        ("train", {"exclude_dirs": ["../data"]}, "not inside"),
        (".", {"external_dirs": ["../other/data"]}, r"collides.*'data'"),
        (".", {"external_dirs": ["../other/README.md"]}, "collides"),
        (".", {"external_dirs": ["../a/shared", "../b/shared"]}, "collides"),
        ("train", {"external_dirs": ["../common", "../common"]}, "collides"),
        (".", {"external_dirs": ["../absent"]}, "does not exist"),
        ("train", {"external_dirs": ["../README.md"]}, "not a folder"),
        (".", {"external_dirs": ["/"]}, "no name"),
    ],
)
def test_a_folder_that_cannot_be_packed_or_excluded_is_refused(
    repo: Path, folder: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(WorkspaceError, match=why):
        plan_layout(repo / folder, **options)


def test_an_excluded_link_stands_for_itself(repo: Path, tmp_path: Path) -> None:
    (repo / "mnt").symlink_to(tmp_path)
    (repo / "alias").symlink_to("data")
    assert plan_layout(repo, exclude_dirs=["mnt", "alias"]).excluded == {"mnt", "alias"}


def test_excluding_nothing_or_the_config_itself_warns(repo: Path) -> None:
    layout = plan_layout(
        repo / "train", workspace_root="..", exclude_dirs=["../absent", "../train"]
    )
    assert layout.excluded == {"absent", "train"}
    assert ["names nothing" in layout.warnings[0], "own folder" in layout.warnings[1]] == [1, 1]


def test_external_folders_are_resolved_from_the_config_folder(repo: Path) -> None:
    layout = plan_layout(repo / "train", external_dirs=["../common", str(repo / "data")])
    assert layout.root == repo / "train"
    assert layout.externals == (repo / "common", repo / "data")


def test_an_external_folder_inside_the_root_is_skipped_with_a_warning(repo: Path) -> None:
    layout = plan_layout(repo / "train", workspace_root="..", external_dirs=["../common"])
    assert layout.externals == ()
    assert len(layout.warnings) == 1
    assert "inside the workspace root" in layout.warnings[0]


def test_an_external_folder_may_replace_an_excluded_one(repo: Path) -> None:
    layout = plan_layout(repo, external_dirs=["../other/data"], exclude_dirs=["data"])
    assert layout.externals == (repo.parent / "other/data",)
