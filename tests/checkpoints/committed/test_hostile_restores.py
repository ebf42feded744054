"""Checkpoint folders that try to lead a retry elsewhere, or to stop it."""

import os
import threading
from contextlib import suppress

import pytest

from prefect_bt.checkpoints.committed import download
from prefect_bt.checkpoints.committed.download import STAGING
from prefect_bt.checkpoints.committed.restore import RestoreTarget, restore_directory
from prefect_bt.checkpoints.manifest import ManifestEntry
from prefect_bt.filesystem import confined, trees
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush


@pytest.fixture
def prepare(store, ckpts, tmp_path):
    """Restore the committed files `a/x` and `a/deep/y`."""
    flush(store, ckpts, {"a/x": b"one", "a/deep/y": b"two"})
    before = folders.contents(ckpts)

    def run():
        target = RestoreTarget(0, ckpts, tmp_path / "aside")
        restore_directory(store, project_id=PROJECT, job_id=JOB, target=target)
        found = {str(p.relative_to(ckpts)) for p in ckpts.rglob("*")}
        assert found == {"a", "a/x", "a/deep", "a/deep/y"}
        assert folders.contents(ckpts) == before
        assert not any(path.is_symlink() for path in ckpts.rglob("*"))

    return run


@pytest.fixture
def host(tmp_path):
    folders.write(tmp_path / "host", {"x": b"mine", "deep/y": b"mine"})
    return tmp_path / "host"


def facts(folder):
    return {path: path.lstat()[:9] for path in (folder, *folder.rglob("*"))}


def nest(place):
    place.mkdir()
    folders.nest(place, "d", 2500)


FILES = {"0": b"1", "lost+found/x": b"2"}
WAYS = {
    "a link": lambda place, host: place.symlink_to(host),
    "a loop": lambda place, host: place.symlink_to(place.name),
    "a pipe": lambda place, host: os.mkfifo(place),
    "a file": lambda place, host: place.write_bytes(b"in the way"),
    "a folder": lambda place, host: folders.write(place, FILES),
    "empty folders": lambda place, host: (place / "lost+found/lost+found").mkdir(parents=True),
    "an endless folder": lambda place, host: nest(place),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", [STAGING, "a", "a/x", "a/deep", "other"])
def test_objects_in_the_way_are_moved_aside(prepare, ckpts, host, tmp_path, way, where):
    before = facts(host)
    with confined.folder_fd(ckpts, os.path.dirname(where)) as within:  # noqa: PTH120
        trees.remove_entry(os.path.basename(where), within=within)  # noqa: PTH119
    WAYS[way](ckpts / where, host)
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
