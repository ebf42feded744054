"""Temporary files of a store, which become objects when they are complete."""

import os

import pytest

from prefect_bt.object_store.disk_staging import TempFolder


@pytest.fixture
def private(tmp_path):
    return TempFolder(tmp_path / "private")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_gets_its_name_at_once_or_not_at_all(private, tmp_path):
    target = tmp_path / "a" / "b"
    with private.create_file() as filling:
        os.write(filling.fd, b"one")
        assert not target.exists()
        filling.create(target)
    assert target.read_bytes() == b"one"
    with private.create_file() as filling:
        os.write(filling.fd, b"two")
    assert (names(tmp_path / "private"), names(tmp_path / "a")) == ([], ["b"])


def test_create_refuses_and_replace_does_not(private, tmp_path):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    with private.create_file() as filling, pytest.raises(FileExistsError):
        filling.create(target)
    assert target.read_bytes() == b"old"
    with private.create_file() as filling:
        os.write(filling.fd, b"new")
        filling.replace(target)
    assert target.read_bytes() == b"new"
    assert names(tmp_path / "private") == []


def test_a_folder_that_was_taken_away_is_made_again(private, tmp_path):
    with private.create_file() as filling:
        filling.create(tmp_path / "x")
    (tmp_path / "private").rmdir()
    with private.create_file() as filling:
        filling.create(tmp_path / "y")
    assert names(tmp_path) == ["private", "x", "y"]


def test_rights_are_those_of_any_new_file(private, tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    with private.create_file() as filling:
        filling.create(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode
