"""Sealing a rank's log: whole, once, and whatever goes wrong beside it."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.ledger.records import ArchivedLog
from prefect_bt.logs import log_archive
from prefect_bt.logs.line_format import format_line, parse_lines
from prefect_bt.logs.log_archive import STALE_COPY_SECONDS, LogArchiver
from prefect_bt.object_keys import log_key
from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store
from tests.altered import altered


@dataclass
class Node:
    """A log as a handle gives it; `broken` names the offset from which on it cannot be read."""

    rank: int
    data: bytes
    attempt: int = 0
    broken: int | None = None

    def log_size(self) -> int:
        return len(self.data)

    def read_log(self, *, offset: int, limit: int) -> bytes:
        if self.broken is not None and offset >= self.broken:
            raise SubstrateError("The disk is gone.", substrate="test", rank=self.rank)
        end = offset + limit if self.broken is None else min(self.broken, offset + limit)
        return self.data[offset:end]


class Place:
    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(str(folder / "store"))
        self.scratch = folder / "scratch"

    def seal(self, *nodes: Node, attempt: int = 0) -> tuple[ArchivedLog, ...]:
        sealer = LogArchiver(
            self.store, project_id="p", job_id="abc1234", attempt=attempt, scratch=self.scratch
        )
        return sealer.archive(nodes)

    def stored(self, rank: int = 0, attempt: int = 0) -> bytes:
        return self.store.get(log_key("p", "abc1234", attempt, rank))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def facts(rank: int, data: bytes, lines: int) -> ArchivedLog:
    return ArchivedLog(rank, len(data), lines, hashlib.sha256(data).hexdigest())


def test_every_rank_with_length_lines_and_digest(place: Place):
    one, two = b"1 a\n2 b\n", b"1 a\n2 cut"
    assert place.seal(Node(1, two), Node(0, one)) == (facts(0, one, 2), facts(1, two, 2))
    assert (place.stored(0), place.stored(1)) == (one, two)
    assert list(place.scratch.iterdir()) == []


def test_a_log_of_several_pieces(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log_archive, "READ_BYTES", 7)
    data = b"".join(format_line(at, f"line {at}") for at in range(100))
    assert place.seal(Node(0, data)) == (facts(0, data, 100),)
    assert place.stored() == data


def test_an_empty_log_is_sealed_too(place: Place):
    assert place.seal(Node(0, b"")) == (facts(0, b"", 0),)
    assert place.stored() == b""


def test_sealed_twice_is_sealed_once(place: Place):
    first = place.seal(Node(0, b"1 a\n"))
    assert place.seal(Node(0, b"1 a\n")) == first


def test_killed_in_the_middle_the_next_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The first rank is in the store, the second is not, and a copy was left behind."""
    place.seal(Node(0, b"1 a\n"))
    left = place.scratch / "sealing-abc1234-xyz"
    left.write_bytes(b"1 b")
    assert len(place.seal(Node(0, b"1 a\n"), Node(1, b"1 b\n"))) == 2
    assert left.exists(), "it may be another's, on its way now"
    old = time.time() - STALE_COPY_SECONDS - 60
    os.utime(left, (old, old))
    other = place.scratch / "another-file"
    other.write_bytes(b"")
    os.utime(other, (old, old))
    place.seal(Node(1, b"1 b\n"))
    assert [path.name for path in place.scratch.iterdir()] == ["another-file"]


def test_a_node_that_is_gone_was_sealed_before(place: Place):
    first = place.seal(Node(0, b"1 a\n"), Node(1, b"1 b\n2 c\n"))
    assert place.seal() == first
    assert place.seal(Node(0, b"1 a\n")) == first


def test_a_shorter_log_never_replaces_a_longer_one(place: Place):
    whole = place.seal(Node(0, b"1 a\n2 b\n"))
    assert place.seal(Node(0, b"1 a\n")) == whole
    assert place.seal(Node(0, b"")) == whole
    assert place.seal(Node(0, b"1 a\n2 b\n", broken=0)) == whole
    assert place.stored() == b"1 a\n2 b\n"


def test_other_attempts_are_not_touched(place: Place):
    first = place.seal(Node(0, b"1 first and longer\n"))
    assert place.seal(Node(0, b"1 x\n", attempt=0), Node(0, b"2 y\n", attempt=1), attempt=1) == (
        facts(0, b"2 y\n", 1),
    )
    assert place.stored(attempt=0) == b"1 first and longer\n"
    assert place.seal() == first


@pytest.mark.parametrize("broken", [0, 4, 6])
def test_a_part_that_cannot_be_read_is_noted_in_the_log(place: Place, broken: int):
    (sealed,) = place.seal(Node(0, b"1 a\n2 b\n", broken=broken))
    stored = place.stored()
    assert sealed == facts(0, stored, stored.count(b"\n"))
    *kept, last = [line.message for line in parse_lines(stored)]
    assert kept == {0: [], 4: ["a"], 6: ["a", ""]}[broken]
    assert last == "[prefect-bt] the rest of this log could not be read: The disk is gone."


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the disk be full once, when a file has so many bytes."""
    failed = list[int]()

    def fill(size: int) -> None:
        def write(descriptor: int, data: bytes) -> int:
            if not failed and os.fstat(descriptor).st_size >= size:
                failed.append(1)
                raise OSError(errno.ENOSPC, "No space left on device")
            return os.write(descriptor, data)

        monkeypatch.setattr(log_archive, "os", altered(os, write=write))

    return fill


def test_a_full_disk_keeps_what_fits(
    place: Place, monkeypatch: pytest.MonkeyPatch, fill_disk: Callable[[int], None]
):
    monkeypatch.setattr(log_archive, "READ_BYTES", 4)
    fill_disk(8)
    (sealed,) = place.seal(Node(0, b"1 a\n2 b\n3 c\n"))
    stored = place.stored()
    assert sealed == facts(0, stored, stored.count(b"\n"))
    first, last = [line.message for line in parse_lines(stored)]
    assert first == "a"
    assert last == ("[prefect-bt] the rest could not be kept: [Errno 28] No space left on device")


def test_a_full_disk_has_the_reason_at_the_end(
    place: Place, monkeypatch: pytest.MonkeyPatch, fill_disk: Callable[[int], None]
):
    monkeypatch.setattr(log_archive, "READ_BYTES", 6)
    fill_disk(900)
    place.seal(Node(0, b"".join(format_line(at, "x") for at in range(100, 300))))
    *kept, last = parse_lines(place.stored())
    assert [line.timestamp for line in kept] == [*range(100, 175)]
    assert last.message.startswith("[prefect-bt] the rest could not be kept:")


class FileNode(Node):
    """A log that is a file of this machine."""

    def __init__(self, file: Path, data: bytes) -> None:
        super().__init__(0, data)
        self.log_file = file
        file.write_bytes(data)


def test_a_file_becomes_the_object_itself(place: Place, tmp_path: Path):
    node = FileNode(tmp_path / "log", b"1 a\n2 b\n")
    assert place.seal(node) == (facts(0, b"1 a\n2 b\n", 2),)
    (found,) = (tmp_path / "store").glob("**/rank-0.log")
    assert found.samefile(node.log_file), "on a disk that is full there is no room for another"
    assert not place.scratch.exists()
    node.log_file.unlink()
    assert place.seal() == (facts(0, b"1 a\n2 b\n", 2),)


def test_a_linked_object_has_the_mode_of_a_copied_one(place: Place, tmp_path: Path):
    node = FileNode(tmp_path / "log", b"1 a\n")
    node.log_file.chmod(0o600)
    before = os.umask(0o027)
    try:
        place.seal(node)
    finally:
        os.umask(before)
    (found,) = (tmp_path / "store").glob("**/rank-0.log")
    assert found.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("there", [b"1 a\n", b"1 a\n2 b\n3 c\n"])
def test_a_file_beside_a_sealed_copy(place: Place, tmp_path: Path, there: bytes):
    place.seal(Node(0, there))
    data = b"1 a\n2 b\n"
    longer = max(data, there, key=len)
    assert place.seal(FileNode(tmp_path / "log", data)) == (facts(0, longer, longer.count(b"\n")),)
    assert place.stored() == longer


def test_other_bytes_of_the_same_length_replace_a_copy(place: Place, tmp_path: Path):
    place.seal(Node(0, b"1 a\n"))
    assert place.seal(FileNode(tmp_path / "log", b"1 b\n")) == (facts(0, b"1 b\n", 1),)
    assert place.stored() == b"1 b\n"


def test_a_file_that_is_gone_is_read_as_the_handle_reads_it(place: Place, tmp_path: Path):
    node = FileNode(tmp_path / "log", b"")
    node.log_file.unlink()
    assert place.seal(node) == (facts(0, b"", 0),)


def test_a_scratch_folder_that_cannot_be_made(place: Place):
    place.scratch.write_text("a file")
    assert place.seal(Node(0, b"1 a\n")) == (facts(0, b"1 a\n", 1),)


def test_a_store_that_refuses_is_an_error(tmp_path: Path):
    place = Place(tmp_path)
    (tmp_path / "store").mkdir(exist_ok=True)
    (tmp_path / "store" / "training_projects").write_text("in the way")
    with pytest.raises(StoreError):
        place.seal(Node(0, b"1 a\n"))
