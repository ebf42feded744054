"""What only the disk store can be asked: races between processes, kills, full disks."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from prefect_bt.errors import InvalidKey, ObjectExists, ObjectNotFound, StoreError
from prefect_bt.object_store import disk
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.object_store.protocols import SupportsLinks
from tests.filesystem.small_disk import small_disk

RACER = """
import sys, time
from prefect_bt.errors import ObjectExists
from prefect_bt.object_store import open_store
store, me, start = open_store(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3])
time.sleep(max(0, start - time.time()))
won = 0
for number in range(100):
    try:
        store.create(f"race/{number}", me * 50)
        won += 1
    except ObjectExists:
        pass
print(won)
"""

WRITER = """
import sys
from pathlib import Path
from prefect_bt.object_store import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
while True:
    store.upload_verified("big", Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_one_of_many_processes_creates(tmp_path):
    start = time.time() + 1.0
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), str(me), str(start)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(4)
    ]
    won = [int(racer.communicate(timeout=200)[0]) for racer in racers]
    assert sum(won) == 100
    store = DiskStore(tmp_path)
    assert all(len(set(store.get(info.key))) == 1 for info in store.list("race"))
    assert not list((tmp_path / ".prefect-bt-tmp").iterdir())


@pytest.mark.slow
def test_a_killed_upload_leaves_nothing_in_sight(tmp_path):
    source, root = tmp_path / "source", tmp_path / "store"
    source.write_bytes(os.urandom(1 << 20) * 16)
    digest = sha256(source.read_bytes()).hexdigest()
    for round_ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(source)], stdout=subprocess.PIPE
        )
        assert writer.stdout and writer.stdout.readline()
        time.sleep(0.02 + 0.03 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        for info in DiskStore(root).list(""):
            assert info.key == "big"
            assert sha256(DiskStore(root).get("big")).hexdigest() == digest
    # Each kill leaves at most its temporary file.
    assert len(list((root / ".prefect-bt-tmp").iterdir())) <= 4


def test_a_killed_upload_is_listed_and_can_be_removed(tmp_path):
    source, root = tmp_path / "source", tmp_path / "store"
    source.touch()
    os.truncate(source, 8 << 30)
    DiskStore(root).put("first", b"")  # the store has its ID before the writer begins
    command = [sys.executable, "-c", WRITER, str(root), str(source)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert writer.stdout and writer.stdout.readline()
        held = Path(f"/proc/{writer.pid}/fd")
        while not any(str(root) in _link(fd) and _size(fd) > 0 for fd in held.iterdir()):
            assert writer.poll() is None
            time.sleep(0.001)
    finally:
        writer.kill()
        writer.communicate()
    store = DiskStore(root)
    assert [info.key for info in store.list("")] == ["first"]
    [unfinished] = store.list_unfinished_uploads()
    assert unfinished.size > 0
    store.abort_upload(unfinished)
    files = {path.name for path in root.rglob("*") if path.is_file()}
    assert files == {"first", ".prefect-bt-store"}


def _link(path):
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _size(path):
    try:
        return path.stat().st_size
    except OSError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 5, (16 << 20) - 1, 16 << 20, (48 << 20) + 7])
def test_upload_exact_copies_hashes_and_reports_bytes(tmp_path, size):
    source = tmp_path / "source"
    data = os.urandom(1 << 20) * (size // (1 << 20)) + os.urandom(size % (1 << 20))
    source.write_bytes(data)
    store, told = DiskStore(tmp_path / "store"), []
    store.upload_verified("x", source, sha256=sha256(data).hexdigest(), on_bytes=told.append)
    assert store.get("x") == data
    assert sum(told) == size


def test_a_source_that_the_kernel_makes_up(tmp_path):
    """Its size reads as 0, and the kernel copies nothing of it."""
    store = DiskStore(tmp_path)
    store.upload_verified("x", Path("/proc/self/status"))
    assert store.get("x").startswith(b"Name:")


def test_temporary_files_are_no_objects(tmp_path):
    private = tmp_path / ".prefect-bt-tmp"
    private.mkdir()
    (private / "left").write_bytes(b"x")
    store = DiskStore(tmp_path)
    store.put("a", b"")
    assert [info.key for info in store.list("")] == ["a"]
    with pytest.raises(StoreError):
        store.get(".prefect-bt-tmp/left")


def test_deleting_leaves_no_empty_folders(tmp_path):
    store = DiskStore(tmp_path)
    store.put("a/b/c", b"")
    store.put("a/d", b"")
    store.delete("a/b/c")
    assert not (tmp_path / "a/b").exists()
    store.delete("a/d")
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_delete_beside_put(tmp_path):
    code = (
        "import sys; from prefect_bt.object_store import open_store; s = open_store(sys.argv[1])\n"
        "for n in range(400): s.put(f'x/y/{sys.argv[2]}', b''); s.delete(f'x/y/{sys.argv[2]}')"
    )
    two = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stderr=subprocess.PIPE)
        for name in "ab"
    ]
    assert [process.communicate(timeout=200)[1] for process in two] == [b"", b""]


def test_a_folder_in_the_way(tmp_path):
    store = DiskStore(tmp_path)
    store.put("a/b", b"")
    with pytest.raises(StoreError):
        store.put("a", b"")
    with pytest.raises(StoreError):
        store.put("a/b/c", b"")
    with pytest.raises(ObjectExists):
        store.create("a", b"")


def test_a_name_that_is_too_long_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="too long"):
        DiskStore(tmp_path).put("x" * 300, b"")


@pytest.fixture
def tiny_disk(tmp_path):
    with small_disk(tmp_path / "tiny", "1m") as folder:
        yield folder


def test_a_full_disk_is_an_error_and_stays_clean(tiny_disk, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * (2 << 20))
    digest = sha256(source.read_bytes()).hexdigest()
    store = DiskStore(tiny_disk)
    store.put("before", b"1")
    for act in (
        lambda: store.upload_verified("big", source),
        lambda: store.upload_verified("big", source, sha256=digest),
        lambda: store.put("big", source.read_bytes()),
        lambda: store.create("big", source.read_bytes()),
    ):
        with pytest.raises(StoreError, match=r"disk is full.*Free space"):
            act()
        assert [info.key for info in store.list("")] == ["before"]
    store.put("after", b"x" * 500_000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="write access"):
        DiskStore(tmp_path).put("a", b"")


def test_an_adopted_file_is_the_object(tmp_path):
    source, store = tmp_path / "source", DiskStore(tmp_path / "store")
    source.write_bytes(b"0123456789")
    assert isinstance(store, SupportsLinks)
    assert store.find_local_path("a/b") is None
    assert store.link_file("a/b%2Fc ü", source)
    lent = store.find_local_path("a/b%2Fc ü")
    assert lent is not None and lent.samefile(source)
    assert store.get("a/b%2Fc ü") == b"0123456789"
    assert [(info.key, info.size) for info in store.list("")] == [("a/b%2Fc ü", 10)]
    store.put("a/b%2Fc ü", b"other")
    assert (lent.read_bytes(), source.read_bytes()) == (b"other", b"0123456789")
    store.delete("a/b%2Fc ü")
    assert source.read_bytes() == b"0123456789"


def test_an_object_that_is_there_is_kept_by_adoption(tmp_path):
    source, store = tmp_path / "source", DiskStore(tmp_path / "store")
    source.write_bytes(b"new")
    store.put("x", b"old")
    assert store.link_file("x", source)
    assert store.get("x") == b"old"
    store.put("folder/x", b"")
    assert not store.link_file("folder", source)
    assert store.find_local_path("folder") is None
    assert not store.link_file("x/y", source)


def test_what_cannot_be_adopted(tmp_path):
    source, link, store = tmp_path / "source", tmp_path / "link", DiskStore(tmp_path / "store")
    with pytest.raises(FileNotFoundError):
        store.link_file("x", source)
    source.write_bytes(b"x")
    link.symlink_to(source)
    assert not store.link_file("x", link)
    assert not store.link_file("x", tmp_path)
    with pytest.raises(StoreError):
        store.link_file("../x", source)
    with pytest.raises(StoreError):
        store.find_local_path("../source")
    assert list(store.list("")) == []


def test_no_adoption_from_another_disk(tiny_disk, tmp_path):
    source, store = tmp_path / "source", DiskStore(tiny_disk)
    source.write_bytes(b"x")
    assert not store.link_file("a/x", source)
    assert list(store.list("")) == []


def test_adoption_beside_deletion(tmp_path):
    """A folder that was found empty may go while a file is to be linked into it."""
    (tmp_path / "source").write_bytes(b"x")
    code = (
        "import sys; from pathlib import Path; from prefect_bt.object_store.disk import DiskStore\n"
        "root = Path(sys.argv[1]); s, key = DiskStore(root / 'store'), f'x/y/{sys.argv[2]}'\n"
        "for n in range(400):\n"
        "    assert s.link_file(key, root / 'source')\n"
        "    s.delete(key)\n"
    )
    two = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stderr=subprocess.PIPE)
        for name in "ab"
    ]
    assert [process.communicate(timeout=200)[1] for process in two] == [b"", b""]
    assert (tmp_path / "source").stat().st_nlink == 1


OPERATIONS: dict[str, Callable[[DiskStore, Path], object]] = {
    "get": lambda store, _: store.get("jobs/a/job.json"),
    "get_range": lambda store, _: store.get_range("jobs/a/job.json", start=0, length=1),
    "list": lambda store, _: list(store.list("jobs")),
    "list all": lambda store, _: list(store.list("")),
    "put": lambda store, _: store.put("jobs/a/new", b"x"),
    "create": lambda store, _: store.create("jobs/a/job.json", b"x"),
    "upload": lambda store, path: store.upload_verified("jobs/a/new", path / "source"),
    "download": lambda store, path: store.download("jobs/a/job.json", path / "target"),
    "delete": lambda store, _: store.delete("jobs/a/job.json"),
    "find": lambda store, _: store.find_local_path("jobs/a/job.json"),
    "unfinished": lambda store, _: list(store.list_unfinished_uploads()),
}


@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another store"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_store_is_not_an_empty_one(
    tmp_path, monkeypatch, operation, left, is_new_process
):
    """A disk that is not mounted leaves no folder, or an empty one."""
    root, aside, memory = tmp_path / "store", tmp_path / "aside", tmp_path / "memory"
    (tmp_path / "source").write_bytes(b"x")
    store = DiskStore(root, memory)
    store.put("jobs/a/job.json", b"kept")
    [remembered] = memory.iterdir()
    remembered.write_text(f"{read_id(root)} another device")
    root.rename(aside)
    if left == "an empty folder":
        root.mkdir()
    if left == "another store":
        monkeypatch.setattr(disk, "_KNOWN", {})
        DiskStore(root).put("b", b"x")
        monkeypatch.setattr(disk, "_KNOWN", {} if is_new_process else {root: read_id(aside)})
    elif is_new_process:
        monkeypatch.setattr(disk, "_KNOWN", {})
    before = sorted(root.glob("**/*"))
    with pytest.raises(StoreError, match="in the folder") as raised:
        OPERATIONS[operation](DiskStore(root, memory), tmp_path)
    assert not isinstance(raised.value, ObjectNotFound)
    assert sorted(root.glob("**/*")) == before
    shutil.rmtree(root, ignore_errors=True)
    aside.rename(root)
    assert store.get("jobs/a/job.json") == b"kept"


def read_id(root: Path) -> str:
    return (root / ".prefect-bt-store").read_text()


def test_a_new_process_knows_a_store_whose_disk_is_not_mounted(tiny_disk, tmp_path, monkeypatch):
    root, memory = tiny_disk / "store", tmp_path / "memory"
    DiskStore(root, memory).put("a", b"1")
    monkeypatch.setattr(disk, "_KNOWN", {})
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tiny_disk)], check=True)
    try:
        with pytest.raises(StoreError, match="not there any more") as raised:
            DiskStore(root, memory).get("a")
    finally:
        subprocess.run(["umount", str(tiny_disk)], check=True)
    assert DiskStore(root, memory).get("a") == b"1"
    shutil.rmtree(root)
    monkeypatch.setattr(disk, "_KNOWN", {})
    monkeypatch.setattr(disk, "_find_device", lambda _: "another")
    with pytest.raises(StoreError):
        DiskStore(root, memory).put("a", b"2")
    subprocess.run(raised.value.next_step.partition("; ")[2].split(), check=True)
    DiskStore(root, memory).put("a", b"2")


def test_a_new_process_begins_a_store_where_one_was_deleted(tmp_path, monkeypatch):
    root, memory = tmp_path / "store", tmp_path / "memory"
    for number in range(2):
        DiskStore(root, memory).put("a", b"%d" % number)
        shutil.rmtree(root)
        monkeypatch.setattr(disk, "_KNOWN", {})
    assert not list(DiskStore(root, memory).list(""))


def test_a_store_without_an_id_gets_one(tmp_path):
    """As those of earlier versions."""
    store = DiskStore(tmp_path)
    store.put("a", b"1")
    (tmp_path / ".prefect-bt-store").unlink()
    disk._KNOWN.pop(tmp_path)
    assert DiskStore(tmp_path).get("a") == b"1"
    DiskStore(tmp_path).put("a", b"2")
    assert read_id(tmp_path)
    assert [info.key for info in store.list("")] == ["a"]
    with pytest.raises(InvalidKey):
        store.get(".prefect-bt-store")


def test_threads_that_begin_a_store(tmp_path):
    for number in range(20):
        root = tmp_path / str(number)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key, root=root: DiskStore(root).put(key, b"x"), "abcdefgh"))
        assert len(list(DiskStore(root).list(""))) == 8
