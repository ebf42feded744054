"""Disks, servers, stores and people at their worst: no wrong byte, one sentence, nothing left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.object_store import open_store
from prefect_bt.text.progress import Progress
from prefect_bt.weights import NodeCache
from prefect_bt.weights.cache.partial_file import PartialFile
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download.downloader import BLOCK_BYTES
from prefect_bt.weights.manifest import FileEntry
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import TransientError
from prefect_bt.weights.store_copy.copies import StoreMirror, blob_key, manifest_key
from prefect_bt.weights.worker_threads import Closed
from tests.forked import Forked

from . import arranged, ranged
from .arranged import LARGE, URL, Arranged, mirrored
from .conftest import tree
from .ranged import serving_ranges

# -- threads that come back late --------------------------------------------------------------


def test_a_late_thread_writes_to_nobody_elses_file(tmp_path: Path) -> None:
    part = PartialFile(tmp_path / "part", 100)
    listing = Listing("r", (ListedFile("a", 5),))
    fill = StagingTree(NodeCache(tmp_path / "weights"), "s", "k1", listing)
    part.close()
    fill.close()
    victims = [(tmp_path / f"victim-{n}").open("w+b") for n in range(8)]  # with those numbers
    with pytest.raises(Closed):
        part.write(0, b"late")
    (fill.path / "late").write_bytes(b"late!")
    with pytest.raises(Closed):
        fill.add(fill.path / "late", FileEntry("a", 5, "0" * 64), is_synced=False)
    assert all(os.fstat(victim.fileno()).st_size == 0 for victim in victims)
    assert not list(fill.files.iterdir())
    for victim in victims:
        victim.close()


@pytest.mark.slow
@pytest.mark.parametrize("hangs_at", ["listing", "small", "large"])
def test_a_stop_does_not_wait_for_a_silent_server(
    source_here: Arranged, tmp_path: Path, hangs_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.weights.worker_threads._STOP_TIMEOUT", 0.1)
    stop, silent = threading.Event(), threading.Event()
    before = threading.enumerate()

    def hang(path: str, at: int) -> None:
        if path.startswith(hangs_at) and at == 0:
            stop.set()
            silent.wait()

    if hangs_at == "listing":
        monkeypatch.setattr(source_here, "tag", lambda _: hang("listing", 0))
    source_here.before = hang
    with pytest.raises(WeightsError, match="was stopped"):
        mirrored(tmp_path, stop=stop)
    assert not silent.is_set()
    # Those who come back now find nothing to write to, also when another run is there.
    late = [thread for thread in threading.enumerate() if thread not in before]
    assert late
    monkeypatch.undo()
    monkeypatch.setitem(protocol.SOURCES, "arranged", "tests.weights.arranged:ArrangedSource")
    monkeypatch.setattr(arranged, "NOW", Arranged(files=source_here.files))
    folder = mirrored(tmp_path).folder
    silent.set()
    for thread in late:
        thread.join()
    assert tree(folder) == source_here.files


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
def test_nothing_is_left_open_and_nobody_left_running(
    source_here: Arranged, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path / "store"))
    source_here.files = {"large.bin": os.urandom(1 << 21), "small.txt": b""}

    def once(n: int) -> None:
        source_here.files["small.txt"] = str(n).encode()
        mirrored(tmp_path / "state", store=store)

    once(0)
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
    for n in range(1, 31):
        once(n)
    # What else this process does may have opened a few; a leak is one a time.
    assert len(os.listdir("/proc/self/fd")) < files + 15  # noqa: PTH208
    assert threading.active_count() < threads + 15


# -- contents ---------------------------------------------------------------------------------


def test_a_blob_that_was_cut_off_is_used_by_nobody(source_here: Arranged, tmp_path: Path) -> None:
    mirrored(tmp_path)
    for blob in tmp_path.glob("weights/blobs/*/*"):
        blob.chmod(0o644)
        os.truncate(blob, 3)
    assert tree(mirrored(tmp_path, key="k2").folder) == source_here.files
    assert tree(mirrored(tmp_path, key="k3").folder) == source_here.files
    for blob in tmp_path.glob("weights/blobs/*/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def test_a_large_content_of_two_places_is_kept_once(source_here: Arranged, tmp_path: Path) -> None:
    first = mirrored(tmp_path)
    second = mirrored(tmp_path, "arranged://host/elsewhere", key="k2")
    assert second.fetched_bytes, "nothing told that it is the same"
    one, two = (done.folder / "large.bin" for done in (first, second))
    assert one.samefile(two)
    assert len(list(tmp_path.glob("weights/blobs/*/*"))) == 2


def test_strange_names(source_here: Arranged, tmp_path: Path) -> None:
    names = ["n" * 255, "ä" * 127, "sub/🦙 model.bin", "a b", "-rf", "#?&=%2e%2e", "x/" * 40 + "y"]
    source_here.files = {name: name.encode() for name in names} | {
        f"empty-{n}": b"" for n in range(50)
    }
    store = open_store(str(tmp_path / "store"))
    assert tree(mirrored(tmp_path / "a", store=store).folder) == source_here.files
    assert tree(mirrored(tmp_path / "b", store=store).folder) == source_here.files


@pytest.mark.parametrize("name", ["x" * 256, "sub/" + "ä" * 128, "bad-\udcff.bin", "nul\0", "."])
def test_names_that_no_file_can_have(source_here: Arranged, tmp_path: Path, name: str) -> None:
    source_here.files[name] = b"x"
    with pytest.raises(WeightsError, match="cannot be a path below the mount"):
        mirrored(tmp_path)
    assert not source_here.asked


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
def test_sizes_at_the_seams(source_here: Arranged, tmp_path: Path, size: int) -> None:
    source_here.files = {"a.bin": os.urandom(size)}
    done = mirrored(tmp_path)
    assert tree(done.folder) == source_here.files
    assert done.fetched_bytes == size
    assert not list(tmp_path.glob("weights/parts/*"))


# -- sources ----------------------------------------------------------------------------------


def cut_off_at(source_here: Arranged, place: int) -> None:
    def cut(path: str, at: int) -> None:
        if at == place:
            raise TransientError(f"{path} was cut off.", source=URL)

    source_here.before = cut


def test_another_object_of_the_same_length_is_not_continued(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tag, and with none."""
    monkeypatch.setattr("prefect_bt.weights.download.downloader.RETRY_DELAYS", ())
    for tags in (True, False):
        source_here.files, source_here.tags = {"a.bin": bytes([1]) * (3 << 20)}, tags
        cut_off_at(source_here, 2 << 20)
        with pytest.raises(WeightsError, match="was cut off"):
            mirrored(tmp_path / str(tags))
        source_here.files = {"a.bin": bytes([2]) * (3 << 20)}
        cut_off_at(source_here, -1)
        assert tree(mirrored(tmp_path / str(tags)).folder) == source_here.files


def test_what_changed_while_it_was_read_is_not_remembered(
    source_here: Arranged, tmp_path: Path
) -> None:
    source_here.pins = False
    before = dict(source_here.files)

    def change(path: str, at: int) -> None:
        source_here.files = {**before, "large.bin": bytes(len(LARGE))}

    source_here.before = change
    with pytest.raises(WeightsError, match="changed while it was copied"):
        mirrored(tmp_path)
    source_here.files = before
    cut_off_at(source_here, -1)
    assert tree(mirrored(tmp_path).folder) == before


@pytest.mark.slow
def test_servers_without_ranges(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.weights.download.downloader.RETRY_DELAYS", ())
    source_here.files |= {f"large-{n}.bin": os.urandom(BLOCK_BYTES + n) for n in range(3)}
    size = sum(map(len, source_here.files.values()))
    cut_off_at(source_here, 2 << 20)
    with pytest.raises(WeightsError):
        mirrored(tmp_path)
    cut_off_at(source_here, -1)
    source_here.ranges = False
    told: list[Progress] = []
    done = mirrored(tmp_path, on_progress=told.append)
    assert tree(done.folder) == source_here.files
    assert max(one.bytes_done for one in told) <= size
    assert any("whole files only" in one.note for one in told)


def test_an_unknown_length(source_here: Arranged, tmp_path: Path) -> None:
    source_here.sizes = False
    source_here.files |= {"only/here/large.bin": os.urandom(3 << 20), "only/there/small": b"x"}
    assert tree(mirrored(tmp_path).folder) == source_here.files


# -- stores -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "asked"])
@pytest.mark.parametrize("harm", ["gone", "cut off", "flipped"])
def test_a_damaged_copy_is_made_good(
    source_here: Arranged, tmp_path: Path, url: str, harm: str, pinned: bool
) -> None:
    source_here.files["large.bin"] = LARGE[: 2 << 20]
    store = open_store(url)
    first = mirrored(tmp_path / "a", store=store)
    manifest = StoreMirror(store).find_manifest(first.name)
    assert manifest is not None
    for entry in manifest.entries:
        data = source_here.files[entry.path]
        store.delete(blob_key(entry.sha256))
        if harm != "gone":
            left = data[:-1] if harm == "cut off" else bytes([data[0] ^ 1]) + data[1:]
            store.put(blob_key(entry.sha256), left)
    revision = first.revision if pinned else ""
    second = mirrored(tmp_path / "b", store=store, revision=revision)
    assert tree(second.folder) == source_here.files
    third = mirrored(tmp_path / "c", store=store)
    assert tree(third.folder) == source_here.files
    assert third.fetched_bytes == 0, "the store has it again"


def test_a_signature_is_in_no_file_and_no_message(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        lambda: setattr(source_here, "files", {}),
        lambda: setattr(source_here, "files", {"../a": b""}),
        lambda: source_here.files.update({"a": b"1"}),
        lambda: cut_off_at(source_here, 0),
    ):
        source_here.files = {}
        spoil()
        with pytest.raises(WeightsError) as caught:
            mirrored(tmp_path, signed, stop=stopped if "a" in source_here.files else None)
        faults.append(f"{caught.value} {caught.value.next_step}")
    assert len(set(faults)) >= 3
    assert "planted" not in "".join([*faults, *notes])
