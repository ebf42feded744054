"""Temporary files of a store on a disk, which become objects when they are complete."""

import pytest

from prefect_bt.errors import ObjectExists
from prefect_bt.object_store.disk import DiskStore


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "store")


@pytest.fixture
def root(store, tmp_path):
    store.put("first", b"")
    return tmp_path / "store"


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".prefect-bt-store")


def test_it_gets_its_name_at_once_or_not_at_all(store, root, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * (40 << 20))
    seen = []

    def look(_):
        seen.append((names(root), len(names(root / ".prefect-bt-tmp"))))
        if len(seen) > 1:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        store.upload_verified("a/b", source, on_bytes=look)
    assert seen == [([".prefect-bt-tmp", "first"], 1)] * 2
    assert (names(root), names(root / ".prefect-bt-tmp")) == ([".prefect-bt-tmp", "first"], [])
    store.upload_verified("a/b", source)
    assert (root / "a/b").read_bytes() == source.read_bytes()


def test_create_refuses_and_put_does_not(store, root):
    (root / "x").write_bytes(b"old")
    with pytest.raises(ObjectExists):
        store.create("x", b"new")
    assert (root / "x").read_bytes() == b"old"
    store.put("x", b"new")
    assert (root / "x").read_bytes() == b"new"
    assert names(root / ".prefect-bt-tmp") == []


def test_a_folder_that_was_taken_away_is_made_again(store, root):
    (root / ".prefect-bt-tmp").rmdir()
    store.create("x", b"")
    assert names(root) == [".prefect-bt-tmp", "first", "x"]


def test_rights_are_those_of_any_new_file(store, root, tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    store.create("x", b"")
    assert (root / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode
