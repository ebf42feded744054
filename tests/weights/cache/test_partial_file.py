"""A large file on its way: what a map promises is there, whoever wrote it and died."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.weights.cache import partial_file
from prefect_bt.weights.cache.partial_file import (
    BLOCK_BYTES,
    PartialFile,
    PartialFileLocked,
    PartialFolder,
    partial_file_id,
)
from prefect_bt.weights.download.digest import StreamingDigests

DATA = os.urandom(2 * BLOCK_BYTES + 1000)


@pytest.fixture
def folder(tmp_path: Path) -> PartialFolder:
    return PartialFolder(tmp_path / "parts" / partial_file_id("something"))


def write(part: PartialFile, block: int, size: int) -> None:
    begin, end = part.span(block)
    at = begin + part.received[block]
    part.write(at, DATA[at : min(end, at + size)])


@pytest.mark.slow
def test_blocks_in_any_order_become_the_file(folder: PartialFolder, tmp_path: Path) -> None:
    part = PartialFile(folder, len(DATA), has_digest=False)
    digests: dict[str, Any] = {"sha256": hashlib.sha256(), "md5": hashlib.md5()}
    following = StreamingDigests(part, digests, lambda: False)
    for block in (2, 0, 1):
        write(part, block, 1000)
        write(part, block, BLOCK_BYTES)
    assert part.incomplete_blocks() == []
    assert following.hexdigests() == {
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "md5": hashlib.md5(DATA).hexdigest(),
    }
    kept = tmp_path / "kept"
    part.finalize().rename(kept)
    part.remove()
    part.close()
    assert kept.read_bytes() == DATA
    assert kept.stat().st_mode & 0o777 == 0o444
    assert not folder.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_digest_is_right_whoever_brings_its_pieces(folder: PartialFolder, seed: int) -> None:
    """Some in order and offered, some not, some by several threads at once."""
    chance = random.Random(seed)
    part = PartialFile(folder, len(DATA), has_digest=False)
    following = StreamingDigests(part, {"sha256": hashlib.sha256()}, lambda: False)

    def bring(block: int) -> None:
        while part.received[block] < (span := part.span(block))[1] - span[0]:
            at = span[0] + part.received[block]
            piece = DATA[at : min(span[1], at + sizes.pop())]
            part.write(at, piece)
            if at % 3:
                following.update(at, piece)

    sizes = [chance.randrange(1, 900_000) for _ in range(400)]
    order = [0, 1, 2]
    chance.shuffle(order)
    threads = [threading.Thread(target=bring, args=(block,)) for block in order]
    for thread in threads:
        thread.start()
        if chance.random() < 0.5:
            thread.join()
    assert following.hexdigests() == {"sha256": hashlib.sha256(DATA).hexdigest()}
    part.close()


def test_one_answer_goes_through_several_blocks(folder: PartialFolder) -> None:
    part = PartialFile(folder, len(DATA), has_digest=False)
    run = range(3)
    write(part, 0, 5000)
    assert (part.next_offset(run), part.end_offset(run)) == (5000, len(DATA))
    part.write(5000, DATA[5000 : BLOCK_BYTES + 7])
    assert part.received == [BLOCK_BYTES, 7, 0]
    assert part.next_offset(run) == BLOCK_BYTES + 7
    part.write(BLOCK_BYTES + 7, DATA[BLOCK_BYTES + 7 :])
    assert part.incomplete_blocks() == []
    assert part.next_offset(run) == part.end_offset(run)
    assert part.data and os.pread(part.data, len(DATA), 0) == DATA
    part.close()


def test_bytes_that_are_not_the_next_ones_are_refused(folder: PartialFolder) -> None:
    """Else the map would promise what is not there."""
    part = PartialFile(folder, len(DATA), has_digest=False)
    for at in (1, BLOCK_BYTES + 5):
        with pytest.raises(ValueError, match="not the next"):
            part.write(at, b"1234")
    assert part.received_bytes == 0
    part.close()


def test_continued_in_mid_block(folder: PartialFolder) -> None:
    first = PartialFile(folder, len(DATA), has_digest=False)
    write(first, 1, 5000)
    write(first, 0, BLOCK_BYTES)
    first.close()
    assert folder.received_bytes() == BLOCK_BYTES + 5000
    second = PartialFile(folder, len(DATA), has_digest=False)
    assert second.received == [BLOCK_BYTES, 5000, 0]
    assert second.incomplete_blocks() == [1, 2]
    assert second.contiguous_bytes() == BLOCK_BYTES + 5000
    second.close()


def test_one_process_at_a_time(folder: PartialFolder) -> None:
    part = PartialFile(folder, 10, has_digest=False)
    assert folder.is_locked()
    with pytest.raises(PartialFileLocked):
        PartialFile(folder, 10, has_digest=False)
    part.close()
    assert not folder.is_locked()


def test_another_length_begins_anew(folder: PartialFolder) -> None:
    part = PartialFile(folder, len(DATA), has_digest=True)
    write(part, 0, 5000)
    part.close()
    other = PartialFile(folder, len(DATA) + 1, has_digest=True)
    assert other.received_bytes == 0
    other.close()


@pytest.mark.parametrize("damage", ["cut", "long", "foreign", "too much", "no data"])
def test_a_map_that_cannot_be_is_not_believed(folder: PartialFolder, damage: str) -> None:
    part = PartialFile(folder, len(DATA), has_digest=True)
    write(part, 0, 5000)
    part.close()
    raw = bytearray(folder.map_file.read_bytes())
    match damage:
        case "cut":
            raw = raw[:-1]
        case "long":
            raw += b"1234"
        case "foreign":
            raw[0] ^= 1
        case "too much":
            raw[-4:] = (BLOCK_BYTES).to_bytes(4, "little")  # of a last block of 1,000 bytes
        case _:
            folder.data_file.unlink()
    folder.map_file.write_bytes(raw)
    again = PartialFile(folder, len(DATA), has_digest=True)
    assert again.received == [0, 0, 0]
    again.close()


@pytest.mark.parametrize(("checked", "kept"), [(True, 5000), (False, 0)])
def test_what_another_boot_left_counts_where_it_will_be_checked(
    folder: PartialFolder, monkeypatch: pytest.MonkeyPatch, checked: bool, kept: int
) -> None:
    part = PartialFile(folder, len(DATA), has_digest=checked)
    write(part, 0, 5000)
    part.close()
    monkeypatch.setattr(partial_file, "boot_id", lambda: "00000000-another-boot")
    again = PartialFile(folder, len(DATA), has_digest=checked)
    assert again.received_bytes == kept
    again.close()
    monkeypatch.undo()
    once_more = PartialFile(folder, len(DATA), has_digest=checked)
    assert once_more.received_bytes == kept, "it is a boot ago, and was written down as such"
    once_more.close()


def test_those_who_follow_are_let_go(folder: PartialFolder) -> None:
    part = PartialFile(folder, len(DATA), has_digest=False)
    following = StreamingDigests(part, {"sha256": hashlib.sha256()}, lambda: False)
    write(part, 0, 5000)
    part.release_waiters()
    assert following.hexdigests().keys() == {"sha256"}, "it does not wait for the rest"
    part.close()
