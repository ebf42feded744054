"""Disks, servers, stores and people at their worst: no wrong byte, one sentence, nothing left."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights import MirrorProgress, MirrorResult, NodeCache, mirror_source
from prefect_bt.weights.cache.node_cache import CachedTree
from prefect_bt.weights.cache.partial_file import BLOCK_BYTES, PartialFile, PartialFolder
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download import disk_space
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import TransientError
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key
from prefect_bt.weights.threads import Closed
from tests.checkpoints.buckets import Bucket, use
from tests.conftest import Soak
from tests.forked import Forked
from tests.s3_server import shared_s3

from . import arranged, ranged
from .arranged import Arranged
from .conftest import tree
from .ranged import serving_ranges

LARGE = os.urandom(BLOCK_BYTES + 1)
URL = "arranged://host/folder"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Arranged:
    monkeypatch.setitem(protocol.SOURCES, "arranged", "tests.weights.arranged:ArrangedSource")
    now = Arranged(files={"large.bin": LARGE, "small.txt": b"small" * 100})
    monkeypatch.setattr(arranged, "NOW", now)
    return now


def mirrored(root: Path, url: str = URL, key: str = "k1", **given: Any) -> MirrorResult:
    plan = WeightsPlan(url, "/w", key)
    return mirror_source(plan, cache=NodeCache(root / "weights"), **given)


# -- threads that come back late --------------------------------------------------------------


def test_a_late_thread_writes_to_nobody_elses_file(tmp_path: Path) -> None:
    part = PartialFile(PartialFolder(tmp_path / "part"), 100, has_digest=False)
    listing = Listing("s", "r", (ListedFile("a", 5),))
    fill = StagingTree(NodeCache(tmp_path / "weights"), "s", "k1", listing)
    part.close()
    fill.close()
    victims = [(tmp_path / f"victim-{n}").open("w+b") for n in range(8)]  # with those numbers
    with pytest.raises(Closed):
        part.write(0, b"late")
    with pytest.raises(Closed):
        fill.write(listing.files[0], b"late!", "0" * 64)
    assert all(os.fstat(victim.fileno()).st_size == 0 for victim in victims)
    assert not list(fill.files.iterdir())
    for victim in victims:
        victim.close()


@pytest.mark.slow
@pytest.mark.parametrize("hangs_at", ["listing", "small", "large"])
def test_a_stop_does_not_wait_for_a_silent_server(
    here: Arranged, tmp_path: Path, hangs_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, silent = threading.Event(), threading.Event()
    before = threading.enumerate()

    def hang(path: str, at: int) -> None:
        if path.startswith(hangs_at) and at == 0:
            stop.set()
            silent.wait()

    if hangs_at == "listing":
        monkeypatch.setattr(here, "tag", lambda _: hang("listing", 0))
    here.before = hang
    with pytest.raises(WeightsError, match="was stopped"):
        mirrored(tmp_path, stop=stop)
    assert not silent.is_set()
    # Those who come back now find nothing to write to, also when another run is there.
    late = [thread for thread in threading.enumerate() if thread not in before]
    assert late
    monkeypatch.undo()
    monkeypatch.setitem(protocol.SOURCES, "arranged", "tests.weights.arranged:ArrangedSource")
    monkeypatch.setattr(arranged, "NOW", Arranged(files=here.files))
    folder = mirrored(tmp_path).folder
    silent.set()
    for thread in late:
        thread.join()
    assert tree(folder) == here.files


def test_ctrl_c_does_not_wait_for_a_silent_server(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.bin").write_bytes(LARGE)
    with serving_ranges(tmp_path / "source") as ranges:
        ranges.pause = 3600.0
        given = json.dumps({"url": ranges.url, "root": str(tmp_path / "weights")})
        process = Forked(Path(ranged.__file__), [given])
        while not ranges.sent:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=200)  # the source gives a server an hour
    assert process.returncode != 0
    assert "KeyboardInterrupt" in log
    assert not list(tmp_path.glob("weights/trees/*"))


@pytest.mark.slow
def test_nothing_is_left_open_and_nobody_left_running(here: Arranged, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    here.files = {"large.bin": os.urandom(1 << 21), "small.txt": b""}

    def once(n: int) -> None:
        here.files["small.txt"] = str(n).encode()
        mirrored(tmp_path / "state", store=store)

    once(0)
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
    for n in range(1, 31):
        once(n)
    # What else this process does may have opened a few; a leak is one a time.
    assert len(os.listdir("/proc/self/fd")) < files + 15  # noqa: PTH208
    assert threading.active_count() < threads + 15


# -- disks ------------------------------------------------------------------------------------


@contextmanager
def disk_of(folder: Path, size: str = "12m") -> Generator[Path]:
    """A file system of its own."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("mount is not installed")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_in_mid_file(
    here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 1 << 40)  # it fills while we fetch
    with disk_of(tmp_path / "disk") as disk:
        for _ in range(2):  # nor does a first failure keep a second one waiting
            with pytest.raises(WeightsError, match="the disk is full") as caught:
                mirrored(disk)
            assert "Make room" in caught.value.next_step
            assert not list(disk.glob("weights/trees/*"))
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        done = mirrored(disk)
        assert tree(done.folder) == here.files
        assert done.fetched_bytes < len(LARGE) - (4 << 20), "what had arrived is kept"


@pytest.mark.parametrize("at", ["nothing is there", "half of it is there"])
def test_a_disk_that_cannot_be_written(here: Arranged, tmp_path: Path, at: str) -> None:
    with disk_of(tmp_path / "disk", size="100m") as disk:
        if at.startswith("half"):
            (disk / "weights").mkdir()
            here.files = {"small.txt": b"1"}
            mirrored(disk)
            here.files = {"small.txt": b"2"}
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(WeightsError, match="Read-only file system") as caught:
            mirrored(disk)
        assert "PREFECT_BT_STATE_DIR" in caught.value.next_step


def test_a_file_system_without_hard_links(
    here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))  # as vfat answers

    monkeypatch.setattr(os, "link", refuse)
    here.files["again.bin"] = LARGE
    store = open_store(str(tmp_path / "store"))
    done = mirrored(tmp_path, store=store)
    assert tree(done.folder) == here.files
    assert mirrored(tmp_path, store=store).cache_hit
    other = mirrored(tmp_path / "other", store=store)
    assert tree(other.folder) == here.files
    assert not [*tmp_path.glob("weights/parts/*"), *tmp_path.glob("weights/fills/*")]


def test_what_a_killed_process_had_in_its_hands_is_not_published(
    here: Arranged, tmp_path: Path
) -> None:
    name = mirrored(tmp_path).name
    cache = NodeCache(tmp_path / "weights")
    cache.evict(name)
    cache.staging_path(name).mkdir(parents=True)
    (cache.staging_path(name) / "stream-1234").write_bytes(b"half")
    (cache.staging_path(name) / "link-1234").write_bytes(b"")
    (cache.staging_path(name) / "journal").write_bytes(b'7\n{"path": 3}\n["a"]\n\0\0')
    folder = mirrored(tmp_path).folder
    assert tree(folder) == here.files
    assert {path.name for path in folder.parent.iterdir()} == {
        *("files", "manifest.json", "summary.json", "used", "leases"),
    }


# -- contents ---------------------------------------------------------------------------------


def test_a_blob_that_was_cut_off_is_used_by_nobody(here: Arranged, tmp_path: Path) -> None:
    mirrored(tmp_path)
    for blob in tmp_path.glob("weights/blobs/*/*"):
        blob.chmod(0o644)
        os.truncate(blob, 3)
    assert tree(mirrored(tmp_path, key="k2").folder) == here.files
    assert tree(mirrored(tmp_path, key="k3").folder) == here.files
    for blob in tmp_path.glob("weights/blobs/*/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def test_a_large_content_of_two_places_is_kept_once(here: Arranged, tmp_path: Path) -> None:
    first = mirrored(tmp_path)
    second = mirrored(tmp_path, "arranged://host/elsewhere", key="k2")
    assert second.fetched_bytes, "nothing told that it is the same"
    one, two = (done.folder / "large.bin" for done in (first, second))
    assert one.samefile(two)
    assert len(list(tmp_path.glob("weights/blobs/*/*"))) == 2


def test_strange_names(here: Arranged, tmp_path: Path) -> None:
    names = ["n" * 255, "ä" * 127, "sub/🦙 model.bin", "a b", "-rf", "#?&=%2e%2e", "x/" * 40 + "y"]
    here.files = {name: name.encode() for name in names} | {f"empty-{n}": b"" for n in range(50)}
    store = open_store(str(tmp_path / "store"))
    assert tree(mirrored(tmp_path / "a", store=store).folder) == here.files
    assert tree(mirrored(tmp_path / "b", store=store).folder) == here.files


@pytest.mark.parametrize("name", ["x" * 256, "sub/" + "ä" * 128, "bad-\udcff.bin", "nul\0", "."])
def test_names_that_no_file_can_have(here: Arranged, tmp_path: Path, name: str) -> None:
    here.files[name] = b"x"
    with pytest.raises(WeightsError, match="could not lie below the mount"):
        mirrored(tmp_path)
    assert not here.asked


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
        BLOCK_BYTES - 1,
        BLOCK_BYTES,
        BLOCK_BYTES + 1,
        2 * BLOCK_BYTES,
    ],
)
def test_sizes_at_the_seams(here: Arranged, tmp_path: Path, size: int) -> None:
    here.files = {"a.bin": os.urandom(size)}
    done = mirrored(tmp_path)
    assert tree(done.folder) == here.files
    assert done.fetched_bytes == size
    assert not list(tmp_path.glob("weights/parts/*"))


# -- sources ----------------------------------------------------------------------------------


def cut_off_at(here: Arranged, place: int) -> None:
    def cut(path: str, at: int) -> None:
        if at == place:
            raise TransientError(f"{path} was cut off.", source=URL)

    here.before = cut


def test_another_object_of_the_same_length_is_not_continued(
    here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tag, and with none."""
    monkeypatch.setattr("prefect_bt.weights.download.block_download.RETRY_DELAYS", ())
    monkeypatch.setattr("prefect_bt.weights.download.small_files.RETRY_DELAYS", ())
    for tags in (True, False):
        here.files, here.tags = {"a.bin": bytes([1]) * (3 << 20)}, tags
        cut_off_at(here, 2 << 20)
        with pytest.raises(WeightsError, match="was cut off"):
            mirrored(tmp_path / str(tags))
        here.files = {"a.bin": bytes([2]) * (3 << 20)}
        cut_off_at(here, -1)
        assert tree(mirrored(tmp_path / str(tags)).folder) == here.files


def test_what_changed_while_it_was_read_is_not_remembered(here: Arranged, tmp_path: Path) -> None:
    here.pins = False
    before = dict(here.files)

    def change(path: str, at: int) -> None:
        here.files = {**before, "large.bin": bytes(len(LARGE))}

    here.before = change
    with pytest.raises(WeightsError, match="changed while it was copied"):
        mirrored(tmp_path)
    here.files = before
    cut_off_at(here, -1)
    assert tree(mirrored(tmp_path).folder) == before


@pytest.mark.slow
def test_servers_without_ranges(
    here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.weights.download.block_download.RETRY_DELAYS", ())
    here.files |= {f"large-{n}.bin": os.urandom(BLOCK_BYTES + n) for n in range(3)}
    size = sum(map(len, here.files.values()))
    cut_off_at(here, 2 << 20)
    with pytest.raises(WeightsError):
        mirrored(tmp_path)
    cut_off_at(here, -1)
    here.ranges = False
    told: list[MirrorProgress] = []
    done = mirrored(tmp_path, on_progress=told.append)
    assert tree(done.folder) == here.files
    assert max(one.bytes_done for one in told) <= size
    assert any("whole files only" in one.note for one in told)


def test_an_unknown_length(here: Arranged, tmp_path: Path) -> None:
    here.sizes = False
    assert tree(mirrored(tmp_path).folder) == here.files


# -- stores -----------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "s3"])
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "store")
        return
    endpoint = shared_s3()
    use(monkeypatch, endpoint)
    bucket = Bucket(endpoint)
    yield bucket.url
    bucket.empty()


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "asked"])
@pytest.mark.parametrize("harm", ["gone", "cut off", "flipped"])
def test_a_damaged_copy_is_made_good(
    here: Arranged, tmp_path: Path, store_url: str, harm: str, pinned: bool
) -> None:
    here.files["large.bin"] = LARGE[: 2 << 20]
    store = open_store(store_url)
    first = mirrored(tmp_path / "a", store=store)
    manifest = StoreMirror(store).find_manifest(first.name)
    assert manifest is not None
    for entry in manifest.entries:
        data = here.files[entry.path]
        store.delete(blob_key(entry.sha256))
        if harm != "gone":
            left = data[:-1] if harm == "cut off" else bytes([data[0] ^ 1]) + data[1:]
            store.put(blob_key(entry.sha256), left)
    revision = first.revision if pinned else ""
    second = mirrored(tmp_path / "b", store=store, revision=revision)
    assert tree(second.folder) == here.files
    third = mirrored(tmp_path / "c", store=store)
    assert tree(third.folder) == here.files
    assert third.fetched_bytes == 0, "the store has it again"


def test_nobody_else_is_told_a_signature(
    here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed, store = f"{URL}?signature=planted", open_store(str(tmp_path / "store"))
    notes: list[str] = []
    done = mirrored(tmp_path, signed, store=store, on_progress=lambda one: notes.append(one.note))
    assert mirrored(tmp_path, signed, store=store).cache_hit
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"planted" not in path.read_bytes(), path
    assert (done.source, store.get(manifest_key(done.name))[:1]) == (URL, b"{")
    faults: list[str] = []
    stopped = threading.Event()
    stopped.set()
    for spoil in (
        lambda: setattr(here, "files", {}),
        lambda: setattr(here, "files", {"../a": b""}),
        lambda: here.files.update({"a": b"1"}),
        lambda: cut_off_at(here, 0),
    ):
        here.files = {}
        spoil()
        with pytest.raises(WeightsError) as caught:
            mirrored(tmp_path, signed, stop=stopped if "a" in here.files else None)
        faults.append(f"{caught.value} {caught.value.next_step}")
    assert len(set(faults)) >= 3
    assert "planted" not in "".join([*faults, *notes])


# -- evictions --------------------------------------------------------------------------------


def test_evictions_beside_fills_of_the_same_contents(here: Arranged, tmp_path: Path) -> None:
    evict_beside_fills(here, tmp_path, fills=5)


@pytest.mark.soak
def test_many_evictions_beside_fills(here: Arranged, tmp_path: Path, soak: Soak) -> None:
    evict_beside_fills(here, tmp_path, fills=100 * soak.length)


def evict_beside_fills(here: Arranged, tmp_path: Path, *, fills: int) -> None:
    """Two mirror so often and one evicts meanwhile: every tree that is there is right."""
    here.files = {"large.bin": os.urandom(2 << 20)} | {f"{n}": bytes([n]) for n in range(20)}
    cache, over, faults = NodeCache(tmp_path / "weights"), threading.Event(), list[BaseException]()

    def again(do: Any, times: int | None) -> None:
        try:
            while not over.is_set() and times != 0:
                do()
                times = times and times - 1
        except BaseException as error:
            faults.append(error)
            over.set()

    def evict() -> None:
        for found in cache.list_trees():
            disk_space.evict(cache, None, found.name)
        cache.usage()
        cache.sweep(older_than=3600)

    def look(key: str) -> None:
        done = mirrored(tmp_path, key=key)
        for path, data in here.files.items():
            try:
                assert (done.folder / path).read_bytes() == data
            except FileNotFoundError:
                return  # evicted: nobody leased it

    hands = [(lambda: look("k1"), fills), (lambda: look("k2"), fills), (evict, None)]
    threads = [threading.Thread(target=again, args=hand) for hand in hands]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    over.set()
    threads[2].join()
    assert faults == []
    kept = mirrored(tmp_path, key="k1")
    assert tree(kept.folder) == here.files
    for path in here.files:
        digest = hashlib.sha256((kept.folder / path).read_bytes()).hexdigest()
        assert cache.blob_path(digest).samefile(kept.folder / path)
    assert cache.evict("k2" + kept.name[2:]) + cache.evict(kept.name) > 2 << 20
    assert [*cache.root.glob("blobs/*/*")] == []


def test_a_content_that_was_evicted_and_fetched_again_before_publishing_is_kept_once(
    here: Arranged, tmp_path: Path
) -> None:
    here.files = {"large.bin": os.urandom(2 << 20), "small": b"x"}
    blobs = list[Path]()

    class Beside(NodeCache):
        """In the moment before the tree is there, others evict its contents and bring them back."""

        def publish(self, staged: Path, name: str, *, holder: str = "") -> CachedTree:
            for data in here.files.values():
                blob = self.blob_path(hashlib.sha256(data).hexdigest())
                blob.unlink()
                blob.write_bytes(data)
                blobs.append(blob)
            return super().publish(staged, name, holder=holder)

    done = mirror_source(WeightsPlan(URL, "/w", "k1"), cache=Beside(tmp_path / "weights"))
    assert tree(done.folder) == here.files
    for blob, path in zip(blobs, here.files, strict=True):
        assert blob.samefile(done.folder / path), path
    assert {path.name for path in done.folder.parent.iterdir()} >= {"files", "manifest.json"}
    assert not (done.folder.parent / "link").exists()


def test_what_a_killed_eviction_left_is_not_kept_for_ever(here: Arranged, tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "weights", budget=1000)
    mirror_source(WeightsPlan(URL, "/w", "k1"), cache=cache)
    loose = cache.blob_path("f" * 64)
    loose.parent.mkdir(parents=True, exist_ok=True)
    loose.write_bytes(b"x" * 100_000)
    left = cache.root / "trash" / "a-tree" / "files"
    left.mkdir(parents=True)
    (left / "data").write_bytes(b"x" * 1000)
    disk_space.enforce_budget(cache, None)
    assert not (cache.root / "trash" / "a-tree").exists()
    assert loose.exists(), "somebody may be about to use it"


def test_a_copy_that_went_with_its_tree_is_not_believed_to_be_there(
    here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    name = mirrored(tmp_path, store=store).name
    cache = NodeCache(tmp_path / "weights")
    monkeypatch.setattr(NodeCache, "evict", lambda *_: 0)  # a job took a lease in this moment
    assert disk_space.evict(cache, StoreMirror(store), name) == 0
    assert StoreMirror(store).list_names() == []
    assert mirrored(tmp_path, store=store).cache_hit
    assert StoreMirror(store).list_names() == [name]
