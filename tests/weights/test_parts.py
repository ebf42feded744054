"""A large file on its way: what a map promises is there, whoever wrote it and died."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.weights import parts
from prefect_bt.weights.following import Following
from prefect_bt.weights.parts import BLOCK, Busy, Part, PartFolder, part_id

DATA = os.urandom(2 * BLOCK + 1000)


@pytest.fixture
def folder(tmp_path: Path) -> PartFolder:
    return PartFolder(tmp_path / "parts" / part_id("something"))


def write(part: Part, block: int, size: int) -> None:
    begin, end = part.span(block)
    at = begin + part.done[block]
    part.write(at, DATA[at : min(end, at + size)])


@pytest.mark.slow
def test_blocks_in_any_order_become_the_file(folder: PartFolder, tmp_path: Path) -> None:
    part = Part(folder, len(DATA), checked=False)
    digests: dict[str, Any] = {"sha256": hashlib.sha256(), "md5": hashlib.md5()}
    following = Following(part, digests, lambda: False)
    for block in (2, 0, 1):
        write(part, block, 1000)
        write(part, block, BLOCK)
    assert part.missing() == []
    assert following.result() == {
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "md5": hashlib.md5(DATA).hexdigest(),
    }
    kept = tmp_path / "kept"
    part.seal().rename(kept)
    part.remove()
    part.close()
    assert kept.read_bytes() == DATA
    assert kept.stat().st_mode & 0o777 == 0o444
    assert not folder.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_digest_is_right_whoever_brings_its_pieces(folder: PartFolder, seed: int) -> None:
    """Some in order and offered, some not, some by several threads at once."""
    chance = random.Random(seed)
    part = Part(folder, len(DATA), checked=False)
    following = Following(part, {"sha256": hashlib.sha256()}, lambda: False)

    def bring(block: int) -> None:
        while part.done[block] < (span := part.span(block))[1] - span[0]:
            at = span[0] + part.done[block]
            piece = DATA[at : min(span[1], at + sizes.pop())]
            part.write(at, piece)
            if at % 3:
                following.offer(at, piece)

    sizes = [chance.randrange(1, 900_000) for _ in range(400)]
    order = [0, 1, 2]
    chance.shuffle(order)
    threads = [threading.Thread(target=bring, args=(block,)) for block in order]
    for thread in threads:
        thread.start()
        if chance.random() < 0.5:
            thread.join()
    assert following.result() == {"sha256": hashlib.sha256(DATA).hexdigest()}
    part.close()


def test_one_answer_goes_through_several_blocks(folder: PartFolder) -> None:
    part = Part(folder, len(DATA), checked=False)
    run = range(3)
    write(part, 0, 5000)
    assert (part.place(run), part.end(run)) == (5000, len(DATA))
    part.write(5000, DATA[5000 : BLOCK + 7])
    assert part.done == [BLOCK, 7, 0]
    assert part.place(run) == BLOCK + 7
    part.write(BLOCK + 7, DATA[BLOCK + 7 :])
    assert part.missing() == []
    assert part.place(run) == part.end(run)
    assert part.data and os.pread(part.data, len(DATA), 0) == DATA
    part.close()


def test_bytes_that_are_not_the_next_ones_are_refused(folder: PartFolder) -> None:
    """Else the map would promise what is not there."""
    part = Part(folder, len(DATA), checked=False)
    for at in (1, BLOCK + 5):
        with pytest.raises(ValueError, match="not the next"):
            part.write(at, b"1234")
    assert part.arrived == 0
    part.close()


def test_continued_in_mid_block(folder: PartFolder) -> None:
    first = Part(folder, len(DATA), checked=False)
    write(first, 1, 5000)
    write(first, 0, BLOCK)
    first.close()
    assert folder.arrived() == BLOCK + 5000
    second = Part(folder, len(DATA), checked=False)
    assert second.done == [BLOCK, 5000, 0]
    assert second.missing() == [1, 2]
    assert second.prefix() == BLOCK + 5000
    second.close()


def test_one_process_at_a_time(folder: PartFolder) -> None:
    part = Part(folder, 10, checked=False)
    assert folder.is_busy()
    with pytest.raises(Busy):
        Part(folder, 10, checked=False)
    part.close()
    assert not folder.is_busy()


def test_another_length_begins_anew(folder: PartFolder) -> None:
    part = Part(folder, len(DATA), checked=True)
    write(part, 0, 5000)
    part.close()
    other = Part(folder, len(DATA) + 1, checked=True)
    assert other.arrived == 0
    other.close()


@pytest.mark.parametrize("damage", ["cut", "long", "foreign", "too much", "no data"])
def test_a_map_that_cannot_be_is_not_believed(folder: PartFolder, damage: str) -> None:
    part = Part(folder, len(DATA), checked=True)
    write(part, 0, 5000)
    part.close()
    raw = bytearray(folder.map.read_bytes())
    match damage:
        case "cut":
            raw = raw[:-1]
        case "long":
            raw += b"1234"
        case "foreign":
            raw[0] ^= 1
        case "too much":
            raw[-4:] = (BLOCK).to_bytes(4, "little")  # of a last block of 1,000 bytes
        case _:
            folder.data.unlink()
    folder.map.write_bytes(raw)
    again = Part(folder, len(DATA), checked=True)
    assert again.done == [0, 0, 0]
    again.close()


@pytest.mark.parametrize(("checked", "kept"), [(True, 5000), (False, 0)])
def test_what_another_boot_left_counts_where_it_will_be_checked(
    folder: PartFolder, monkeypatch: pytest.MonkeyPatch, checked: bool, kept: int
) -> None:
    part = Part(folder, len(DATA), checked=checked)
    write(part, 0, 5000)
    part.close()
    monkeypatch.setattr(parts, "boot_id", lambda: "00000000-another-boot")
    again = Part(folder, len(DATA), checked=checked)
    assert again.arrived == kept
    again.close()
    monkeypatch.undo()
    once_more = Part(folder, len(DATA), checked=checked)
    assert once_more.arrived == kept, "it is a boot ago, and was written down as such"
    once_more.close()


def test_those_who_follow_are_let_go(folder: PartFolder) -> None:
    part = Part(folder, len(DATA), checked=False)
    following = Following(part, {"sha256": hashlib.sha256()}, lambda: False)
    write(part, 0, 5000)
    part.give_up()
    assert following.result().keys() == {"sha256"}, "it does not wait for the rest"
    part.close()
