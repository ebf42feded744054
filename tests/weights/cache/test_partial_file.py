"""A large file on its way: what a map promises is there, whichever process wrote it and died."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import is_free
from prefect_bt.weights.cache import partial_file
from prefect_bt.weights.cache.digest_index import file_identity
from prefect_bt.weights.cache.partial_file import (
    GRANULE_BYTES,
    PartialFile,
    PartialFileLocked,
    count_received,
    partial_file_id,
)
from prefect_bt.weights.download.open_file import OrderedDigest
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.worker_threads import Closed

DATA = os.urandom(4 * GRANULE_BYTES + 1000)
SIZE = len(DATA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "parts" / partial_file_id("something")


def opened(folder: Path, size: int = SIZE) -> PartialFile:
    return PartialFile(folder, size)


def write(part: PartialFile, begin: int, end: int) -> None:
    part.write(begin, DATA[begin:end])


def missing(part: PartialFile, most: int = 1 << 30) -> list[tuple[int, int]]:
    return [(run.start, run.stop) for run in part.missing_runs(most)]


def test_granules_in_any_order_become_the_file(folder: Path, tmp_path: Path) -> None:
    part = opened(folder)
    for first, last in ((4, 5), (1, 3), (0, 1), (3, 4)):
        write(part, first * GRANULE_BYTES, min(SIZE, last * GRANULE_BYTES))
    assert missing(part) == []
    assert part.received_bytes == count_received(folder) == SIZE
    kept = tmp_path / "kept"
    part.finalize().rename(kept)
    part.remove()
    part.close()
    assert kept.read_bytes() == DATA
    assert kept.stat().st_mode & 0o777 == 0o444
    assert not folder.exists()


def test_a_granule_has_arrived_with_its_last_byte(folder: Path) -> None:
    part = opened(folder)
    write(part, 0, GRANULE_BYTES - 1)
    assert not part.has(0)
    write(part, GRANULE_BYTES - 1, 2 * GRANULE_BYTES + 1)
    assert [part.has(n * GRANULE_BYTES) for n in range(5)] == [True, True, False, False, False]
    write(part, 4 * GRANULE_BYTES, SIZE - 1)
    assert not part.has(SIZE - 1)
    write(part, SIZE - 1, SIZE)
    assert part.has(SIZE - 1)
    assert part.received_bytes == 2 * GRANULE_BYTES + 1000
    part.close()


def test_missing_runs_are_of_whole_granules(folder: Path) -> None:
    part = opened(folder)
    one, end = GRANULE_BYTES, SIZE
    assert missing(part) == [(0, end)]
    assert missing(part, 3 * one) == [(0, 3 * one), (3 * one, end)]
    assert missing(part, one - 1)[:2] == [(0, one), (one, 2 * one)]
    write(part, one, 2 * one)
    assert missing(part) == [(0, one), (2 * one, end)]
    assert missing(part, 2 * one) == [(0, one), (2 * one, 4 * one), (4 * one, end)]
    part.close()


def test_another_process_goes_on_with_what_arrived(folder: Path) -> None:
    first = opened(folder)
    write(first, GRANULE_BYTES, 2 * GRANULE_BYTES + 5000)
    first.close()
    assert count_received(folder) == GRANULE_BYTES
    second = opened(folder)
    assert missing(second) == [(0, GRANULE_BYTES), (2 * GRANULE_BYTES, SIZE)]
    buffer = memoryview(bytearray(SIZE))
    assert second.read(GRANULE_BYTES + 7, buffer) == DATA[GRANULE_BYTES + 7 : 2 * GRANULE_BYTES]
    second.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_digest_is_right_in_whatever_order_bytes_arrive(folder: Path, seed: int) -> None:
    """Some in order and offered, some not, some by several threads at once."""
    chance = random.Random(seed)
    part, digest = opened(folder), OrderedDigest({"sha256": hashlib.sha256()})
    sizes = [chance.randrange(1, 300_000) for _ in range(1000)]

    def bring(granule: int) -> None:
        at, end = granule * GRANULE_BYTES, min(SIZE, (granule + 1) * GRANULE_BYTES)
        while at < end:
            view = memoryview(DATA)[at : min(end, at + sizes.pop())]
            part.write(at, view)
            if at % 3:
                digest.offer(at, view)
            at += len(view)
        digest.catch_up(part, lambda: False)

    order = [0, 1, 2, 3, 4]
    chance.shuffle(order)
    threads = [threading.Thread(target=bring, args=(granule,)) for granule in order]
    for thread in threads:
        thread.start()
        if chance.random() < 0.5:
            thread.join()
    for thread in threads:
        thread.join()
    digest.catch_up(part, lambda: False)
    assert digest.hexdigests()["sha256"] == hashlib.sha256(DATA).hexdigest()
    part.close()


def test_a_stopped_thread_reads_no_further(folder: Path) -> None:
    part, digest = opened(folder), OrderedDigest({"sha256": hashlib.sha256()})
    write(part, 0, GRANULE_BYTES)
    digest.catch_up(part, lambda: True)
    assert digest.hexdigests()["sha256"] == hashlib.sha256().hexdigest()
    part.close()
    with pytest.raises(Closed):
        digest.catch_up(part, lambda: False)


def test_one_process_at_a_time(folder: Path) -> None:
    part = opened(folder, 10)
    assert not is_free(folder / "lock")
    with pytest.raises(PartialFileLocked):
        opened(folder, 10)
    part.close()
    part.close()
    assert is_free(folder / "lock")


def test_a_process_that_removes_its_file_leaves_those_of_the_next_one(folder: Path) -> None:
    faults: list[BaseException] = []

    def download_often() -> None:
        try:
            for _ in range(200):
                with suppress(PartialFileLocked):
                    part = opened(folder, 10)
                    part.write(0, b"0123456789")
                    assert part.finalize().read_bytes() == b"0123456789"
                    part.remove()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=download_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [*folder.parent.iterdir()] == []


def test_another_length_restarts_the_download(folder: Path) -> None:
    part = opened(folder)
    write(part, 0, GRANULE_BYTES)
    part.close()
    other = opened(folder, SIZE + 1)
    assert other.received_bytes == 0
    other.close()


@pytest.mark.parametrize("damage", ["cut", "long", "foreign", "another mark", "no data", "empty"])
def test_a_map_that_cannot_be_is_not_believed(folder: Path, damage: str) -> None:
    part = opened(folder)
    write(part, 0, GRANULE_BYTES)
    part.close()
    raw = bytearray((folder / "map").read_bytes())
    match damage:
        case "cut":
            raw = raw[:-1]
        case "long":
            raw += b"\0"
        case "foreign":
            raw[:3] = b"\xff\0\7"
        case "another mark":
            raw[-2] = 2
        case "no data":
            (folder / "data").unlink()
        case _:
            raw.clear()
    (folder / "map").write_bytes(raw)
    again = opened(folder)
    assert missing(again) == [(0, SIZE)]
    again.close()


@pytest.mark.parametrize("listed", ["sha256", "git_sha1", "version_tag"])
def test_what_another_boot_left_counts_where_it_will_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    kept = 0 if listed == "version_tag" else GRANULE_BYTES
    file = replace(ListedFile("a.bin", SIZE), **{listed: "d" * 64})

    def continued() -> PartialFile:
        return opened(tmp_path / partial_file_id(file_identity("s3://b/a", file)))

    part = continued()
    write(part, 0, GRANULE_BYTES)
    part.close()
    monkeypatch.setattr(partial_file, "boot_id", lambda: "00000000-another-boot")
    again = continued()
    assert again.received_bytes == kept
    again.close()


def test_data_that_a_kill_left_read_only_is_continued(folder: Path) -> None:
    part = opened(folder)
    write(part, 0, GRANULE_BYTES)
    data = part.finalize()
    part.close()
    part = opened(folder)
    assert data.stat().st_mode & 0o777 == 0o644
    assert part.received_bytes == GRANULE_BYTES
    part.close()


def test_data_shared_with_a_blob_is_not_truncated(folder: Path, tmp_path: Path) -> None:
    part = opened(folder)
    write(part, 0, SIZE)
    blob = tmp_path / "blob"
    blob.hardlink_to(part.finalize())
    part.close()
    (folder / "map").unlink()
    part = opened(folder)
    write(part, 0, GRANULE_BYTES)
    assert part.received_bytes == GRANULE_BYTES
    part.close()
    assert blob.read_bytes() == DATA
    assert blob.stat().st_mode & 0o777 == 0o444


def test_a_late_thread_changes_no_file_that_was_opened_meanwhile(
    folder: Path, tmp_path: Path
) -> None:
    part = opened(folder)
    write(part, 0, SIZE)
    part.close()
    # They get the descriptors of the partial file.
    others = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT, 0o644) for n in range(3)]
    with pytest.raises(Closed):
        part.finalize()
    assert {os.fstat(other).st_mode & 0o777 for other in others} == {0o644}
    for other in others:
        os.close(other)


def test_a_digest_does_not_keep_bytes_that_it_read_back(folder: Path) -> None:
    part, digest = opened(folder), OrderedDigest({"sha256": hashlib.sha256()})
    view = memoryview(DATA)[1000:2000]
    kept = weakref.ref(view)
    digest.offer(1000, view)
    del view
    assert kept() is not None
    write(part, 0, SIZE)
    digest.catch_up(part, lambda: False)
    part.close()
    assert kept() is None
    assert digest.hexdigests()["sha256"] == hashlib.sha256(DATA).hexdigest()
