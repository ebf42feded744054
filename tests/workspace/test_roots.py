"""Check which folders are packed, and every refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.roots import plan_layout

MakeTree = Callable[[Path, Mapping[str, str]], Path]


@pytest.fixture
def repo(tmp_path: Path, make_tree: MakeTree) -> Path:
    return make_tree(
        tmp_path / "repo",
        {"train/config.py": "", "common/lib.py": "", "data/big.bin": "", "README.md": ""},
    )


def test_no_workspace_packs_the_source_folder_itself(repo: Path) -> None:
    layout = plan_layout(repo / "train")
    assert (layout.root, layout.externals, layout.excluded) == (repo / "train", (), frozenset())
    assert not layout.gathered


def test_an_empty_workspace_root_counts_as_none(repo: Path) -> None:
    assert not plan_layout(repo / "train", workspace_root="").gathered


@pytest.mark.parametrize("spelling", ["..", "../", "../../repo", "../common/.."])
def test_a_relative_root_starts_at_the_config_folder(repo: Path, spelling: str) -> None:
    layout = plan_layout(repo / "train", workspace_root=spelling)
    assert layout.root == repo
    assert layout.gathered


def test_an_absolute_root_is_allowed(repo: Path) -> None:
    assert plan_layout(repo / "train", workspace_root=str(repo)).root == repo


def test_the_root_may_be_the_config_folder_itself(repo: Path) -> None:
    assert plan_layout(repo / "train", workspace_root=".").root == repo / "train"


@pytest.mark.parametrize("spelling", ["../common", "sub", "../train2"])
def test_a_root_that_does_not_contain_the_config_is_refused(repo: Path, spelling: str) -> None:
    with pytest.raises(WorkspaceError, match="must be inside workspace_root") as caught:
        plan_layout(repo / "train", workspace_root=spelling)
    assert caught.value.path == str((repo / "train" / spelling).resolve())


def test_a_missing_source_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="does not exist or is not a folder"):
        plan_layout(tmp_path / "absent")


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


@pytest.mark.parametrize("item", ["../common/lib.py", "..", "../train/config.py"])
def test_an_exclude_below_the_top_level_is_refused(repo: Path, item: str) -> None:
    with pytest.raises(WorkspaceError, match="not a direct child"):
        plan_layout(repo / "train", workspace_root="..", exclude_dirs=[item])


@pytest.mark.parametrize("item", ["../../elsewhere", "/tmp"])
def test_an_exclude_outside_the_root_is_refused(repo: Path, item: str) -> None:
    with pytest.raises(WorkspaceError, match="not inside"):
        plan_layout(repo / "train", workspace_root="..", exclude_dirs=[item])


def test_an_exclude_next_to_the_root_taken_from_the_config_is_refused(repo: Path) -> None:
    with pytest.raises(WorkspaceError, match="not inside"):
        plan_layout(repo / "train", exclude_dirs=["../data"])


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


def test_an_external_folder_may_not_take_a_top_level_name(repo: Path, make_tree: MakeTree) -> None:
    other = make_tree(repo.parent / "other/data", {"x": ""})
    with pytest.raises(WorkspaceError, match=r"collides.*'data'"):
        plan_layout(repo, external_dirs=[str(other)])


def test_an_external_folder_may_not_take_the_name_of_a_file(
    repo: Path, make_tree: MakeTree
) -> None:
    other = make_tree(repo.parent / "other/README.md", {"x": ""})
    with pytest.raises(WorkspaceError, match="collides"):
        plan_layout(repo, external_dirs=[str(other)])


def test_an_external_folder_may_replace_an_excluded_one(repo: Path, make_tree: MakeTree) -> None:
    other = make_tree(repo.parent / "other/data", {"x": ""})
    layout = plan_layout(repo, external_dirs=[str(other)], exclude_dirs=["data"])
    assert layout.externals == (other,)


def test_two_external_folders_of_one_name_are_refused(repo: Path, make_tree: MakeTree) -> None:
    one, two = (make_tree(repo.parent / side / "shared", {"x": ""}) for side in ("a", "b"))
    with pytest.raises(WorkspaceError, match="collides"):
        plan_layout(repo, external_dirs=[str(one), str(two)])


def test_the_same_external_folder_twice_is_refused(repo: Path) -> None:
    with pytest.raises(WorkspaceError, match="collides"):
        plan_layout(repo / "train", external_dirs=["../common", "../common"])


def test_a_missing_external_folder_is_refused(repo: Path) -> None:
    with pytest.raises(WorkspaceError, match="does not exist"):
        plan_layout(repo, external_dirs=["../absent"])


def test_an_external_file_is_refused(repo: Path) -> None:
    with pytest.raises(WorkspaceError, match="not a folder"):
        plan_layout(repo / "train", external_dirs=["../README.md"])


def test_the_file_system_root_has_no_name_to_be_packed_under(repo: Path) -> None:
    with pytest.raises(WorkspaceError, match="no name"):
        plan_layout(repo, external_dirs=["/"])
