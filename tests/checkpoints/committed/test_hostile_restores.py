"""Checkpoint folders that try to lead a retry elsewhere, or to stop it."""

import os
import threading
from contextlib import suppress

import pytest

from prefect_bt.checkpoints.committed import download
from prefect_bt.checkpoints.committed.download import STAGING
from prefect_bt.checkpoints.committed.restore import restore_directory
from prefect_bt.checkpoints.manifest import ManifestEntry
from prefect_bt.filesystem import confined, trees
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush


@pytest.fixture
def prepare(store, ckpts, tmp_path):
    """Restore the committed files `a/x` and `a/deep/y`."""
    folders.write(ckpts, {"a/x": b"one", "a/deep/y": b"two"})
    flush(store, ckpts)
    before = folders.contents(ckpts)

    def run():
        restore_directory(
            store,
            project_id=PROJECT,
            job_id=JOB,
            rank=0,
            directory=ckpts,
            aside_dir=tmp_path / "aside",
        )
        assert {str(p.relative_to(ckpts)) for p in ckpts.rglob("*")} == {
            *("a", "a/x", "a/deep", "a/deep/y")
        }
        assert folders.contents(ckpts) == before
        assert not any(path.is_symlink() for path in ckpts.rglob("*"))

    return run


@pytest.fixture
def host(tmp_path):
    folders.write(tmp_path / "host", {"x": b"mine", "deep/y": b"mine"})
    return tmp_path / "host"


def facts(folder):
    return {path: path.lstat()[:9] for path in (folder, *folder.rglob("*"))}


def as_link(place, host):
    place.symlink_to(host)


def as_loop(place, host):
    place.symlink_to(place.name)


def as_pipe(place, host):
    os.mkfifo(place)


def as_file(place, host):
    place.write_bytes(b"in the way")


def as_folder(place, host):
    folders.write(place, {"0": b"1", "lost+found/x": b"2"})


def as_empty_folders(place, host):
    (place / "lost+found/lost+found").mkdir(parents=True)


def as_endless_folder(place, host):
    place.mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)


WAYS = [as_link, as_loop, as_pipe, as_file, as_folder, as_empty_folders, as_endless_folder]


@pytest.mark.parametrize("put", WAYS)
@pytest.mark.parametrize("where", [STAGING, "a", "a/x", "a/deep", "other"])
def test_whatever_is_in_the_way(prepare, ckpts, host, tmp_path, put, where):
    before = facts(host)
    with confined.folder_fd(ckpts, os.path.dirname(where)) as within:  # noqa: PTH120
        trees.remove_entry(os.path.basename(where), within=within)  # noqa: PTH119
    put(ckpts / where, host)
    try:
        prepare()
        prepare()
    finally:
        with confined.folder_fd(tmp_path) as top:
            trees.remove_entry("aside", within=top)
    assert facts(host) == before


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_pipe_in_a_users_folder_is_not_waited_for(tmp_path, name):
    """A pipe that nobody writes to keeps an open for reading without O_NONBLOCK waiting."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    entry = ManifestEntry(name, name, "key", 1, "0" * 64)
    found = []
    reader = threading.Thread(
        target=lambda: found.append(download.find_matching(tmp_path, {name: entry})), daemon=True
    )
    reader.start()
    reader.join(60)
    waits = reader.is_alive()
    while reader.is_alive():  # let it go: the suite must not hang with it
        with suppress(OSError):  # it has not begun to read, or is through
            os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))
        reader.join(0.05)
    assert not waits
    assert found == [set()]


@pytest.mark.parametrize("where", [STAGING, "a", "a/deep"])
def test_links_put_there_during_a_restore(prepare, store, ckpts, host, monkeypatch, where):
    """Put links as a container could: nothing is written outside, and the next restore works."""
    before = facts(host)
    with confined.folder_fd(ckpts) as top:
        trees.remove_entry("a", within=top)
    original = download._download_verified
    done = []

    def swap(site, entry, staged, tick):
        arrived = original(site, entry, staged, tick)
        if not done:
            done.append(staged)
            with confined.folder_fd(ckpts) as top:
                (ckpts / where).parent.mkdir(exist_ok=True)
                if (ckpts / where).exists():
                    os.rename(where, "moved", src_dir_fd=top, dst_dir_fd=top)
                os.symlink(host, where, dir_fd=top)
        return arrived

    monkeypatch.setattr(download, "_download_verified", swap)
    try:
        prepare()
    except Exception as error:
        assert "cannot be written" in str(error) or isinstance(error, AssertionError)
    assert done
    assert facts(host) == before
    monkeypatch.undo()
    prepare()
    assert facts(host) == before
