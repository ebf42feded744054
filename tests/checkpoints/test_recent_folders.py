"""Files that are read one after another: their folder is opened once, and never through a link."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from prefect_bt.checkpoints.volume_links import OutsideVolumes, RecentFolders, Volumes

from .folders import flush, write
from .shelf import listed


class Counted(Volumes):
    opened = 0

    @contextmanager
    def open_folder(self, relative=""):
        Counted.opened += 1
        with super().open_folder(relative) as folder:
            yield folder


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(Counted, "opened", 0)
    return Counted


def content(folders, relative):
    with folders.open(relative) as file:
        return os.pread(file.descriptor, 100, 0)


def descriptors(folder):
    """How many descriptors of this process are of something below the folder."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += one.readlink().is_relative_to(folder)
    return found


def test_a_folder_is_opened_once_for_all_files_in_it(ckpts, counted):
    write(ckpts, {f"{folder}/{n}": b"%d" % n for folder in ("a", "b/c") for n in range(50)})
    folders = RecentFolders(counted(ckpts))
    for folder in ("a", "b/c"):
        for n in range(50):
            assert content(folders, f"{folder}/{n}") == b"%d" % n
    assert counted.opened == 2
    assert descriptors(ckpts) == 1
    folders.close()
    assert descriptors(ckpts) == 0


def test_each_thread_has_a_folder_of_its_own(ckpts, counted):
    names = [f"{folder}/{n}" for n in range(100) for folder in "abcd"]
    write(ckpts, {name: name.encode() for name in names})
    folders = RecentFolders(counted(ckpts))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: content(folders, name), names))
    folders.close()
    assert found == [name.encode() for name in names]
    assert descriptors(ckpts) == 0


def test_an_upload_opens_each_folder_once_a_thread(store, ckpts, monkeypatch):
    """Of 400 files in one folder, by 32 threads; the scans and looks open it a few times more."""
    monkeypatch.setattr("prefect_bt.checkpoints.upload.commit.RecentFolders", lambda _: folders)
    folders = RecentFolders(Counted(ckpts))
    monkeypatch.setattr(Counted, "opened", 0)
    write(ckpts / "checkpoint-10", {f"{n:03}": b"%d" % n for n in range(400)})
    flush(store, ckpts)
    assert len(list(listed(store)["checkpoint-10"].files())) == 400
    assert 1 <= Counted.opened <= 32


def test_a_folder_that_becomes_a_link_leads_nowhere_else(ckpts, tmp_path):
    write(tmp_path / "outside", {"f": b"secret", "g": b"secret"})
    write(ckpts / "a", {"f": b"mine", "g": b"mine"})
    folders = RecentFolders(Volumes(ckpts))
    assert content(folders, "a/f") == b"mine"
    (ckpts / "a").rename(ckpts / "b")
    (ckpts / "a").symlink_to(tmp_path / "outside")
    assert content(folders, "a/g") == b"mine"
    fresh = RecentFolders(Volumes(ckpts))
    with pytest.raises(OutsideVolumes):
        content(fresh, "a/g")
    folders.close()


def test_a_link_in_the_folder_is_followed_as_the_node_would(ckpts, tmp_path):
    write(ckpts, {"a/f": b"1", "b/g": b"2"})
    (tmp_path / "secret").write_bytes(b"secret")
    (ckpts / "a/inside").symlink_to("../b/g")
    (ckpts / "a/outside").symlink_to(tmp_path / "secret")
    folders = RecentFolders(Volumes(ckpts))
    assert content(folders, "a/f") == b"1"
    assert content(folders, "a/inside") == b"2"
    with pytest.raises(OutsideVolumes):
        content(folders, "a/outside")
    folders.close()


def test_a_pipe_is_not_waited_for(ckpts):
    write(ckpts, {"a/f": b"1"})
    os.mkfifo(ckpts / "a/pipe")
    folders = RecentFolders(Volumes(ckpts))
    assert content(folders, "a/f") == b"1"
    with pytest.raises(OSError, match="not a regular file"):
        content(folders, "a/pipe")
    folders.close()
