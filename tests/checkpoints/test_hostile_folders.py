"""Checkpoint folders with which a job tries to get at this machine, or to delay its own end."""

import os
import socket
import stat
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from prefect_bt.checkpoints.upload.uploader import UploadOptions
from prefect_bt.checkpoints.volume_links import OutsideVolumes, Volumes
from prefect_bt.checkpoints.watch import scanner, watcher
from prefect_bt.checkpoints.watch.scanner import scan
from prefect_bt.filesystem import confined, trees
from tests.altered import altered

from . import folders
from .folders import flush
from .running import Running, listed, wait_for

SECRET = b"a host's own file"


@pytest.fixture
def host(tmp_path):
    """Create a folder of this machine that is in no volume of the job."""
    folders.write(tmp_path / "host", {"secret.bin": SECRET, "deep/secret.bin": SECRET})
    return tmp_path / "host"


@pytest.fixture
def node(tmp_path, ckpts):
    """Return options of an uploader beside a container: its paths, and their folders."""
    folders.write(tmp_path / "scratch", {"kept/a.bin": b"from scratch"})
    folders.write(tmp_path / "base", {"below.bin": b"base"})
    folders.write(tmp_path / "cache", {"b.bin": b"from the cache"})
    targets = (
        ("/mnt/ckpts", ckpts),
        ("/mnt/bt-scratch", tmp_path / "scratch"),
        ("/root/.cache", tmp_path / "base"),
        ("/root/.cache/user_artifacts", tmp_path / "cache"),
    )
    return UploadOptions(
        settle=0.05, scan=0.02, stall_timeout=0.5, recommit_interval=0.1, mounts=targets
    )


@contextmanager
def endless(folder):
    """Nest 3000 folders in `folder`; shutil.rmtree could not remove them again."""
    try:
        folders.nest(folder, "far", 3000)
        yield
    finally:
        with confined.folder_fd(folder) as top:
            trees.remove_entry("far", within=top)


def stored_bytes(store):
    return [store.get(info.key) for info in store.list("")]


def assert_not_stolen(store):
    assert not any(SECRET in data for data in stored_bytes(store))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("what", ["deep", "secret.bin"])
def test_a_link_to_this_machine_is_a_fault_and_no_bytes(store, ckpts, host, node, what, relative):
    folders.write(ckpts / "checkpoint-1", folders.hf_full(1))
    folders.write(ckpts / "checkpoint-2", folders.hf_full(2))
    link = ckpts / "checkpoint-1/steal"
    link.symlink_to(os.path.relpath(host / what, link.parent) if relative else host / what)
    status = flush(store, ckpts, options=node)
    assert_not_stolen(store)
    assert set(listed(store)) == {"checkpoint-2"}
    (said,) = status.uncommitted
    assert said.startswith("checkpoint-1: steal is a link to /")
    assert "/mnt/bt-scratch" in said and "copy its target" in said


@pytest.mark.parametrize(
    "target",
    [
        "/mnt/ckpts/../../etc/hostname",
        "../../bt-scratch/../../etc/hostname",
        "/root/.cache/user_artifacts/../../.ssh/id",
        "/mnt/ckpts/checkpoint-1/hop",
        "/",
        "/root",
        "/proc/self/environ",
    ],
)
def test_ways_out(store, ckpts, node, target):
    folders.write(ckpts / "checkpoint-1", folders.hf_full(1))
    (ckpts / "checkpoint-1/hop").symlink_to("/etc/hostname")
    (ckpts / "checkpoint-1/steal").symlink_to(target)
    flush(store, ckpts, options=node)
    assert listed(store) == {}
    (ckpts / "checkpoint-1/hop").unlink()
    status = flush(store, ckpts, options=node)
    # What holds the folder itself is a loop, and no file; what is gone is no file either.
    harmless = target in {"/", "/mnt/ckpts/checkpoint-1/hop"}
    assert bool(status.uncommitted) is not harmless
    if harmless:
        paths = {file.path for file in listed(store)["checkpoint-1"].files()}
        assert paths == {f"checkpoint-1/{name}" for name in folders.hf_full(1)}


@pytest.mark.parametrize(
    ("target", "data"),
    [
        ("/mnt/bt-scratch/kept/a.bin", b"from scratch"),
        ("../../bt-scratch/kept/a.bin", b"from scratch"),
        ("/mnt/ckpts/other/../../bt-scratch/kept/a.bin", b"from scratch"),
        ("/root/.cache/user_artifacts/b.bin", b"from the cache"),
        ("/root/.cache/user_artifacts/../below.bin", b"base"),
        ("/mnt/ckpts/other/hop", b"from scratch"),
        ("../other/blob", b"blob"),
    ],
)
def test_a_link_into_a_volume_is_what_the_node_sees(store, ckpts, node, target, data):
    folders.write(ckpts / "checkpoint-1", {"a.bin": b"own"})
    folders.write(ckpts / "other", {"blob": b"blob"})
    (ckpts / "other/hop").symlink_to("/mnt/bt-scratch/kept/a.bin")
    (ckpts / "checkpoint-1/link.bin").symlink_to(target)
    assert not flush(store, ckpts, options=node).uncommitted
    (manifest,) = listed(store)["checkpoint-1"].manifests
    (entry,) = (one for one in manifest.entries if one.path == "link.bin")
    assert store.get(entry.key) == data


def test_a_linked_folder_is_watched_where_it_is(store, ckpts, node, host, tmp_path):
    (ckpts / "best").symlink_to("/mnt/bt-scratch/kept")
    with Running(store, ckpts, node) as running:
        wait_for(lambda: running.done("best"))
        folders.write(tmp_path / "scratch/kept", {"later.bin": b"2"})
        wait_for(lambda: len(list(listed(store)["best"].files())) == 2)


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_link_put_in_place_while_it_is_read(store, ckpts, host, node, monkeypatch, place):
    """Put the link between the scan and the reading; the bytes are those of the scan, or none."""
    folders.write(ckpts / "checkpoint-1/deep", {"secret.bin": b"x" * len(SECRET)})
    swapped, original = [], Volumes.open_file

    def open_swapped(self, relative):
        if not swapped:
            swapped.append(relative)
            if place == "file":
                (ckpts / "checkpoint-1/deep/secret.bin").unlink()
                (ckpts / "checkpoint-1/deep/secret.bin").symlink_to(host / "secret.bin")
            else:
                (ckpts / "checkpoint-1/deep").rename(ckpts / "checkpoint-1/was")
                (ckpts / "checkpoint-1/deep").symlink_to(host / "deep")
        return original(self, relative)

    monkeypatch.setattr(Volumes, "open_file", open_swapped)
    status = flush(store, ckpts, options=node)
    assert swapped
    assert_not_stolen(store)
    assert "is a link to" in status.uncommitted[0]


def test_the_target_of_a_closed_folder_that_becomes_a_link_is_not_read(ckpts, host, monkeypatch):
    (ckpts / "a/x").mkdir(parents=True)
    opened = os.open

    def refuse(path, flags, *rest, **given):
        if path == "x":
            (ckpts / "a/x").rmdir()
            (ckpts / "a/x").symlink_to(host / "secret.bin")
            raise PermissionError(13, "closed")
        return opened(path, flags, *rest, **given)

    monkeypatch.setattr(scanner, "os", altered(os, open=refuse))
    found = scan(Volumes(ckpts))
    assert (host / "secret.bin").stat().st_ino not in {fact.inode for fact in found.values()}


@pytest.mark.parametrize("there", ["pipe", "folder"])
def test_a_file_that_is_replaced_before_it_is_opened(tmp_path, there):
    (tmp_path / "x").write_bytes(b"1")
    seen = (tmp_path / "x").stat()
    (tmp_path / "x").unlink()
    os.mkfifo(tmp_path / "x") if there == "pipe" else (tmp_path / "x").mkdir()
    with confined.folder_fd(tmp_path) as within, pytest.raises(confined.NotRegularFile):
        confined.open_regular("x", within=within, known_stat=seen)


def test_a_pipe_is_not_opened(tmp_path, monkeypatch):
    """To open a device can act on it."""
    os.mkfifo(tmp_path / "x")
    with confined.folder_fd(tmp_path) as within:
        monkeypatch.setattr(confined, "os", altered(os, open=None))
        with pytest.raises(confined.NotRegularFile):
            confined.open_regular("x", within=within)


def test_a_pipe_put_in_place_of_a_file_keeps_no_job_from_its_end(store, ckpts, monkeypatch):
    for name in ("small.bin", "large.bin", "config.json"):
        folders.write(ckpts / "a", {name: b"1" * (9 * 1024**2 if name == "large.bin" else 10)})
    original = Volumes.open_file

    def open_swapped(self, relative):
        path = ckpts / relative
        if not stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink()
            os.mkfifo(path)
        return original(self, relative)

    monkeypatch.setattr(Volumes, "open_file", open_swapped)
    status = flush(store, ckpts)
    assert status.flushed
    assert listed(store) == {}


def test_devices_and_sockets_are_no_files(store, ckpts, node, tmp_path):
    folders.write(ckpts / "a", {"x": b"1"})
    (ckpts / "a/zero").symlink_to("/mnt/bt-scratch/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "scratch/socket"))
    (ckpts / "a/socket").symlink_to("/mnt/bt-scratch/socket")
    os.mkfifo(ckpts / "a/pipe")
    try:
        os.mknod(ckpts / "a/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(tmp_path / "scratch/zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        os.mknod(ckpts / "a/disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    except PermissionError:
        pytest.skip("only root makes devices")
    status = flush(store, ckpts, options=node)
    assert not status.error and not status.uncommitted
    assert [file.path for file in listed(store)["a"].files()] == ["a/x"]


def test_folders_deeper_than_a_path_is_long(store, ckpts):
    folders.write(ckpts / "ok", {"x": b"1"})
    folders.write(ckpts / "deep" / "/".join(["d"] * 300), {"x": b"2"})
    with endless(ckpts):
        status = flush(store, ckpts)
    assert set(listed(store)) == {"ok", "deep"}
    (said,) = status.uncommitted
    assert said.startswith("far: far/far") and "folders deep" in said
    assert not status.error


def test_names_of_bytes_and_signs(store, ckpts):
    odd = ["line\nbreak", "\x1b[31mred", os.fsdecode(b"\xff\xfe"), "x" * 255, " ", "a\\b"]
    folders.write(ckpts / "a", {name: name.encode(errors="surrogateescape") for name in odd})
    assert not flush(store, ckpts).uncommitted
    assert {file.path for file in listed(store)["a"].files()} == {f"a/{name}" for name in odd}


def test_a_file_of_holes_is_named(store, ckpts):
    folders.write(ckpts / "a", {"x": b"1"})
    folders.write(ckpts / "b", {"x": b"1"})
    try:
        os.truncate(ckpts / "b/x", 1 << 40)
    except OSError:
        pytest.skip("this file system has no files of a terabyte")
    (said,) = flush(store, ckpts).uncommitted
    assert said.startswith("b: x has 1099511627776 bytes, of which ")
    assert set(listed(store)) == {"a"}


@pytest.mark.parametrize("counted", ["files", "folders"])
def test_a_link_bomb_has_a_bound(ckpts, monkeypatch, counted):
    """Put ten links to the next one into each folder: 10^12 files, if they were counted."""
    monkeypatch.setattr(scanner, f"MAX_{counted.upper()}", 2000)
    for level in range(12):
        (ckpts / f"l{level}").mkdir()
        for number in range(10):
            (ckpts / f"l{level}/x{number}").symlink_to(f"../l{level + 1}")
    (ckpts / "l12").mkdir()
    if counted == "files":
        (ckpts / "l12" / "x").write_bytes(b"1")
    with pytest.raises(OSError, match=f"more than 2,000 {counted}"):
        scan(Volumes(ckpts))


def test_a_flush_of_too_many_files_ends_with_an_error(store, ckpts, monkeypatch):
    monkeypatch.setattr(scanner, "MAX_FILES", 10)
    folders.write(ckpts / "a", {str(number): b"1" for number in range(11)})
    status = flush(store, ckpts)
    assert "more than 10 files" in status.error


def test_the_watches_of_this_user_are_not_used_up(ckpts, monkeypatch):
    monkeypatch.setattr("prefect_bt.checkpoints.watch.inotify.MAX_WATCHES", 5)
    for number in range(10):
        folders.write(ckpts / str(number), {"x": b"1"})
    directory = watcher.DirectoryWatcher(Volumes(ckpts), poll_interval=0.01)
    assert len(directory.refresh()) == 10
    folders.write(ckpts / "late", {"x": b"1"})
    assert len(directory.refresh()) == 11
    directory.close()


def opened_below(folder: Path) -> list[str]:
    """Return the open paths below the folder; threads of earlier tests open and close others."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_no_descriptor_is_left_open(tmp_path, ckpts, host, node):
    folders.write(ckpts / "a/b/c", {"x": b"1"})
    (ckpts / "a/out").symlink_to(host)
    (ckpts / "a/scratch").symlink_to("/mnt/bt-scratch")
    (ckpts / "a/loop").symlink_to("loop")
    (ckpts / "a/up").symlink_to("..")
    volumes = Volumes(ckpts, node.mounts)
    with volumes.open_file("a/b/c/x"):
        assert opened_below(tmp_path)
    for _ in range(5):
        scan(volumes)
        for path in ("a/out/x", "a/scratch/kept/a.bin", "a/loop", "a/none", "a/b/c/x/y", "a/b"):
            try:
                with volumes.open_file(path):
                    pass
            except OSError:
                continue
    assert opened_below(tmp_path) == []
    with (
        pytest.raises(OutsideVolumes, match="out of the job's volumes"),
        volumes.open_file("a/out/x"),
    ):
        pass
