"""Trees that jobs wrote: whatever is in them is deleted and listed, and nothing beside them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.filesystem import trees
from prefect_bt.filesystem.trees import find_files, remove_tree
from tests.altered import altered

DEEP = 3000
NOBODY = 65534


def nest(folder: Path, depth: int) -> None:
    """Nest folders deeper than a path can tell; a file in each hundredth, links beside."""
    folder.mkdir(exist_ok=True)
    above = os.open(folder, os.O_RDONLY)
    for level in range(depth):
        os.mkdir("d", dir_fd=above)
        if level % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=above))
            os.symlink("/", "link", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    return folder


def test_a_deep_tree_is_deleted_and_listed(tmp_path: Path) -> None:
    nest(tmp_path / "deep", DEEP)
    try:
        names = {path.name for path in find_files(tmp_path / "deep")}
        assert names == {"file", "link"}
    finally:
        remove_tree(tmp_path / "deep")  # pytest could not
    assert list(tmp_path.iterdir()) == []


def test_wide_and_nested_folders_go(tmp_path: Path) -> None:
    for one in range(5):
        for two in range(5):
            for three in range(5):
                place = tmp_path / "tree" / str(one) / str(two) / str(three)
                place.mkdir(parents=True)
                (place / "file").touch()
    assert len(list(find_files(tmp_path / "tree"))) == 125
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_links_pipes_and_strange_names(tmp_path: Path, outside: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "away").symlink_to(outside)
    (tree / "round").symlink_to(".")
    os.mkfifo(tree / "pipe")
    (tree / "a\nb").write_text("x")
    (tree / os.fsdecode(b"\xff")).write_text("x")
    names = {path.name for path in find_files(tree)}
    assert names == {"away", "round", "pipe", "a\nb", os.fsdecode(b"\xff")}
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "precious").read_text() == "precious"


def test_of_a_link_only_the_link_goes(tmp_path: Path, outside: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(outside)
    remove_tree(link)
    assert not link.is_symlink()
    assert (outside / "precious").exists()


def test_a_folder_that_becomes_a_link_while_it_is_deleted(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the folder between being listed and being opened."""
    tree = tmp_path / "tree"
    (tree / "sub" / "folder").mkdir(parents=True)
    (tree / "sub" / "folder" / "file").touch()
    opened = os.open

    def swap(path: str, flags: int, *rest: int, **given: int) -> int:
        if path == "folder" and not (tree / "gone").exists():
            (tree / "sub" / "folder").rename(tree / "gone")
            (tree / "sub" / "folder").symlink_to(outside)
        return opened(path, flags, *rest, **given)

    monkeypatch.setattr(trees, "os", altered(os, open=swap))
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "precious").exists()


@pytest.mark.parametrize("function", ["fstat", "chmod"])
def test_a_folder_that_becomes_a_link_while_it_is_opened_up(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Replace the folder right before the function is called: the mode of `outside` stays."""
    outside.chmod(0o500)
    tree = tmp_path / "tree"
    (tree / "folder" / "sub").mkdir(parents=True)
    (tree / "folder").chmod(0o500)
    original = getattr(os, function)

    def swapped(*given: Any, **options: Any) -> Any:
        if not (tree / "gone").exists():
            (tree / "folder").rename(tree / "gone")
            (tree / "folder").symlink_to(outside)
        return original(*given, **options)

    monkeypatch.setattr(trees, "os", altered(os, **{function: swapped}))
    remove_tree(tree)
    assert outside.stat().st_mode & 0o777 == 0o500
    assert (outside / "precious").exists()


def test_a_folder_that_becomes_a_link_while_it_is_listed(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").touch()
    opened = os.open

    def swap(path: Path, flags: int) -> int:
        if path == tree / "sub" and not (tree / "gone").exists():
            (tree / "sub").rename(tree / "gone")
            (tree / "sub").symlink_to(outside)
        return opened(path, flags)

    monkeypatch.setattr(trees, "os", altered(os, open=swap))
    assert [path.name for path in find_files(tree)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_user_deletes_closed_folders() -> None:
    """Delete as a user without rights over others' files; modes close nothing to root."""
    with tempfile.TemporaryDirectory(prefix="pbt-trees-", dir="/var/tmp") as name:
        os.chown(name, NOBODY, NOBODY)
        child = os.fork()
        if child == 0:
            os._exit(_delete_closed(Path(name) / "tree"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _delete_closed(tree: Path) -> int:
    """Delete the tree as another user; return 0 when all is gone."""
    with suppress(BaseException):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        (tree / "a" / "b" / "c").mkdir(parents=True)
        (tree / "a" / "b" / "c" / "file").touch()
        for place in ("a/b/c", "a/b", "a", "."):
            (tree / place).chmod(0)
        remove_tree(tree)
        return int(os.path.lexists(tree))
    return 2
