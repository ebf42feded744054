"""Which requests bring a large file, also from servers that drop, trickle or send too much."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.text.progress import Progress
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES
from prefect_bt.weights.download import downloader
from prefect_bt.weights.download.downloader import BLOCK_BYTES
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import RangesUnsupported, TransientError
from tests.weights import arranged
from tests.weights.arranged import LARGE, Arranged, ArrangedSource, mirrored
from tests.weights.conftest import tree

REQUESTS: list[tuple[int, int]] = []
"""(start, length) of every request for large.bin."""


class Recording(ArrangedSource):
    """A source that answers a request as `answer` says."""

    answer: Callable[[bytes], Iterator[bytes]]

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        if file.path == "large.bin":
            REQUESTS.append((start, length))
        return Recording.answer(arranged.NOW.files[file.path][start:][:length])


@pytest.fixture
def recording(source_here: Arranged, monkeypatch: pytest.MonkeyPatch) -> Arranged:
    monkeypatch.setitem(protocol.SOURCES, "arranged", f"{__name__}:Recording")
    monkeypatch.setattr(downloader, "RETRY_DELAYS", (0.01,) * 4)
    monkeypatch.setattr(Recording, "answer", lambda data: iter([data]), raising=False)
    REQUESTS.clear()
    return source_here


def test_a_file_is_requested_once_in_blocks(recording: Arranged, tmp_path: Path) -> None:
    recording.files["large.bin"] = data = LARGE * 3
    assert tree(mirrored(tmp_path).folder) == recording.files
    asked = sorted(REQUESTS)
    assert all(start + length == after for (start, length), (after, _) in itertools.pairwise(asked))
    assert asked[0] == (0, BLOCK_BYTES)
    assert sum(length for _, length in asked) == len(data)
    assert len(asked) == -(-len(data) // BLOCK_BYTES)


def test_a_server_that_drops_large_answers_is_asked_for_less(
    recording: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(data: bytes) -> Iterator[bytes]:
        if len(data) > GRANULE_BYTES:
            raise TransientError("The connection was lost.", source=arranged.URL)
        yield data

    monkeypatch.setattr(Recording, "answer", drop)
    assert tree(mirrored(tmp_path).folder) == recording.files


def test_more_than_was_asked_for_is_left_out(
    recording: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "answer", lambda data: iter([data + b"more", b"and more"]))
    told: list[Progress] = []
    done = mirrored(tmp_path, on_progress=told.append)
    assert tree(done.folder) == recording.files
    assert told[-1].bytes_done == sum(map(len, recording.files.values()))


def test_a_stream_without_an_end_is_left(
    recording: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(_: bytes) -> Iterator[bytes]:
        for sent in range(3 * len(LARGE) // GRANULE_BYTES):
            assert sent * GRANULE_BYTES < 2 * len(LARGE)
            yield bytes(GRANULE_BYTES)

    recording.tags = False  # no ranges
    del recording.files["small.txt"]
    monkeypatch.setattr(Recording, "answer", send)
    with pytest.raises(WeightsError, match=f"not {len(LARGE)}"):
        mirrored(tmp_path)


def test_bytes_that_trickle_are_a_stall(
    recording: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trickle(data: bytes) -> Iterator[bytes]:
        for at in range(len(data)):
            yield data[at : at + 1]
            time.sleep(0.01)

    monkeypatch.setattr(Recording, "answer", trickle)
    monkeypatch.setattr(downloader, "MAX_SECONDS_PER_GRANULE", 0.05)
    with pytest.raises(WeightsError, match="stalled at byte"):
        mirrored(tmp_path)


def test_a_slow_server_that_brings_granules_is_read_on(
    recording: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), GRANULE_BYTES):
            yield data[at : at + GRANULE_BYTES]

    monkeypatch.setattr(Recording, "answer", slow)
    monkeypatch.setattr(downloader, "MAX_SECONDS_PER_GRANULE", 0.0)
    assert tree(mirrored(tmp_path).folder) == recording.files


def test_a_stream_that_arrived_corrupt_leaves_nothing(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ArrangedSource.list_files

    def without_ranges(self: ArrangedSource) -> Listing:
        files = (
            replace(file, sequential_only=True, sha256=hashlib.sha256(LARGE).hexdigest())
            for file in listed(self).files
            if file.path == "large.bin"
        )
        return replace(listed(self), files=tuple(files))

    def spoil_once(path: str, at: int) -> None:
        spoilt = len(source_here.asked) == 1
        source_here.files[path] = bytes(len(LARGE)) if spoilt else LARGE

    monkeypatch.setattr(ArrangedSource, "list_files", without_ranges)
    source_here.before = spoil_once
    done = mirrored(tmp_path)
    assert len(source_here.asked) == 2
    assert tree(done.folder) == {"large.bin": LARGE}
    assert not [*done.folder.parent.glob("stream-*")]


def test_small_files_that_arrived_before_an_error_are_kept(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.weights.worker_threads._STOP_TIMEOUT", 120.0)

    def refuse(path: str, _at: int) -> None:
        if path == "500":
            raise WeightsError("500 is not for you.", source=arranged.URL)

    source_here.files = {f"{n:03}": bytes(1000 + n) for n in range(600)}
    source_here.before = refuse
    with pytest.raises(WeightsError, match="not for you"):
        mirrored(tmp_path)
    arrived = {path for path, _ in source_here.asked} - {"500"}
    assert len(arrived) >= 300  # three other threads may still have 37 files each before it
    source_here.asked.clear()
    source_here.before = lambda _path, _at: None
    assert tree(mirrored(tmp_path).folder) == source_here.files
    again = arrived & {path for path, _ in source_here.asked}
    assert len(again) <= 16  # one on its way on each connection


def test_a_silent_source_gets_all_connections(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloader, "CONNECTIONS", (8, 8))
    together = threading.Barrier(8, timeout=20)
    source_here.files = {f"{n}": bytes(1000 + n) for n in range(8)}
    source_here.before = lambda _path, _at: together.wait() and None
    assert tree(mirrored(tmp_path).folder) == source_here.files


def test_files_of_a_slow_source_are_written_one_by_one(
    source_here: Arranged, tmp_path: Path
) -> None:
    written, lock = list[int](), threading.Lock()

    def pause(_path: str, _at: int) -> None:
        time.sleep(0.02)
        with lock:  # between a look and its append, others would append
            written.append(len([*tmp_path.glob("weights/fills/*/files/*")]))

    source_here.files = {f"{n:03}": bytes(1000 + n) for n in range(600)}
    source_here.before = pause
    mirrored(tmp_path)
    late = [n - written[n] for n in range(300, 600)]
    assert max(late) <= 16


def test_a_file_that_no_request_can_read_is_an_error(source_here: Arranged, tmp_path: Path) -> None:
    def refuse(_path: str, _at: int) -> None:
        raise RangesUnsupported("The server sends no lengths.", source=arranged.URL)

    source_here.files, source_here.before = {"a.bin": LARGE}, refuse
    with pytest.raises(RangesUnsupported, match="sends no lengths"):
        mirrored(tmp_path)
