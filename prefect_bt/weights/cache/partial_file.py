"""A large file on its way, block by block, in any order, continued by whoever comes next.

    parts/<id>/lock    flock of the process that works on it
    parts/<id>/data    the file at its full length, with holes
    parts/<id>/map     a header, then how many bytes of each block have arrived (4 bytes a block)

Bytes are written before the map says so: a process that is killed leaves bytes that the map does
not know, never the other way round. A machine that lost its power may: what another boot left
counts only where the source tells a digest of the whole file.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.job_lock import OPEN_FLAGS, try_lock
from prefect_bt.host.writeback import start_writeback
from prefect_bt.weights.threads import ClosableGate

BLOCK_BYTES: Final = 16 << 20
"""Bytes that the map counts together."""
MAP_FLUSH_BYTES: Final = 1 << 20
"""Bytes of a block after which the map says so: what a kill costs, at most, each connection."""
_HEADER: Final = struct.Struct("<8sQQ40s")
_MAGIC: Final = b"pbtpart1"
_COUNT: Final = struct.Struct("<I")


@cache
def boot_id() -> str:
    """Which boot of this machine this is; "" where nobody tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def partial_file_id(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


class PartialFileLocked(Exception):
    """Somebody works on this part."""


@dataclass(frozen=True)
class PartialFolder:
    path: Path

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def data_file(self) -> Path:
        return self.path / "data"

    @property
    def map_file(self) -> Path:
        return self.path / "map"

    def is_locked(self) -> bool:
        """Whether a living process works on it."""
        try:
            descriptor = os.open(self.lock_file, OPEN_FLAGS)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor, shared=True)
        finally:
            os.close(descriptor)

    def received_bytes(self) -> int:
        """Bytes that are here, as far as the map says; for those who only look."""
        try:
            raw = self.map_file.read_bytes()[_HEADER.size :]
        except OSError:
            return 0
        return sum(n for (n,) in _COUNT.iter_unpack(raw[: len(raw) // _COUNT.size * _COUNT.size]))


class PartialFile:
    """Open while this process works on it. Threads write to different blocks."""

    def __init__(self, folder: PartialFolder, size: int, *, has_digest: bool) -> None:
        """`has_digest`: the bytes will be compared with a digest that the source told. Busy."""
        self.folder, self.size = folder, size
        self.received_condition = threading.Condition()
        self.closed = False
        self._prefix_block = 0
        self._door = ClosableGate()
        self._writing = threading.Lock()
        """The kernel has writers of one file take turns too, and lets them spin for it."""
        with ExitStack() as opened:
            self._lock = _lock(folder.lock_file)
            opened.callback(os.close, self._lock)
            self.data = os.open(folder.data_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opened.callback(lambda: os.close(self.data))
            self._map = os.open(folder.map_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opened.callback(os.close, self._map)
            self.received = self._read_map(has_digest)
            self._told = list(self.received)
            self._opened = opened.pop_all()

    # -- blocks -------------------------------------------------------------------------------

    @property
    def block_count(self) -> int:
        return -(-self.size // BLOCK_BYTES)

    def span(self, block: int) -> tuple[int, int]:
        """Where the block begins and ends."""
        return block * BLOCK_BYTES, min(self.size, (block + 1) * BLOCK_BYTES)

    def incomplete_blocks(self) -> list[int]:
        """Blocks that are not whole."""
        return [n for n in range(self.block_count) if self.received[n] < _length(self.span(n))]

    @property
    def received_bytes(self) -> int:
        return sum(self.received)

    def next_offset(self, run: range) -> int:
        """Where the first byte of these blocks is missing; where they end if none is."""
        for block in run:
            begin, end = self.span(block)
            if self.received[block] < end - begin:
                return begin + self.received[block]
        return self.end_offset(run)

    def end_offset(self, run: range) -> int:
        return self.span(run[-1])[1] if run else 0

    def write(self, at: int, piece: bytes | memoryview) -> None:
        """The bytes that are missing at this place. Shut once it was closed."""
        view = memoryview(piece)
        with self._door.hold_open():
            while view:
                block = at // BLOCK_BYTES
                now = view[: self.span(block)[1] - at]
                self._write_in(block, at, now)
                view, at = view[len(now) :], at + len(now)

    def _write_in(self, block: int, at: int, view: memoryview) -> None:
        begin, end = self.span(block)
        if at != begin + self.received[block]:
            raise ValueError(f"byte {at} is not the next one of block {block}")
        while view:
            with self._writing:
                count = os.pwrite(self.data, view, at)
            view, at = view[count:], at + count
        self.received[block] = at - begin
        if at < end and self.received[block] - self._told[block] < MAP_FLUSH_BYTES:
            return
        self._set(block, self.received[block])
        if at == end:
            start_writeback(self.data, begin, end - begin)
        with self.received_condition:
            self.received_condition.notify_all()

    def read(self, at: int, buffer: memoryview) -> memoryview:
        """What is at that place, as far as the buffer goes. Shut once it was closed."""
        with self._door.hold_open():
            count = os.preadv(self.data, [buffer], at)
        if not count:
            raise OSError(f"{self.folder.data_file} ended at byte {at}")
        return buffer[:count]

    def contiguous_bytes(self) -> int:
        """Bytes from the beginning that are there without a gap."""
        while self._prefix_block < self.block_count:
            begin, end = self.span(self._prefix_block)
            if self.received[self._prefix_block] < end - begin:
                return begin + self.received[self._prefix_block]
            self._prefix_block += 1
        return self.size

    def import_file(self, other: Path) -> None:
        """What came another way: a file that is this one, or the beginning of it."""
        arrived = min(other.stat().st_size, self.size)
        before, self.data = self.data, os.open(other, os.O_RDWR | os.O_CLOEXEC)
        os.close(before)
        other.replace(self.folder.data_file)
        os.ftruncate(self.data, self.size)
        for block in range(self.block_count):
            begin, end = self.span(block)
            self._set(block, max(0, min(end, arrived) - begin))

    def reset(self) -> None:
        """All of it is to be fetched again."""
        for block in range(self.block_count):
            self._set(block, 0)
        self._prefix_block = 0
        os.ftruncate(self.data, 0)
        os.ftruncate(self.data, self.size)

    def release_waiters(self) -> None:
        """Those who wait for more bytes wait no longer."""
        with self.received_condition:
            self.closed = True
            self.received_condition.notify_all()

    # -- the end ------------------------------------------------------------------------------

    def finalize(self) -> Path:
        """Its bytes are right: the file, once they are on the disk; nobody writes to it again."""
        os.fchmod(self.data, 0o444)
        os.fdatasync(self.data)
        return self.folder.data_file

    def remove(self) -> None:
        """Nobody needs it any more."""
        remove_tree(self.folder.path)

    def close(self) -> None:
        """Idempotent. Returns when no thread uses it; the lock goes last."""
        self.release_waiters()
        if self._door.close():
            with self._opened:
                for block, count in enumerate(self.received):
                    if count != self._told[block]:
                        self._set(block, count)

    # -- the map ------------------------------------------------------------------------------

    def _read_map(self, checked: bool) -> list[int]:
        header = _HEADER.pack(_MAGIC, self.size, BLOCK_BYTES, boot_id().encode())
        raw = self.folder.map_file.read_bytes()
        same = len(raw) == _HEADER.size + self.block_count * _COUNT.size
        same = same and raw[: _HEADER.size - 40] == header[:-40]
        ours = raw[_HEADER.size - 40 : _HEADER.size] == header[-40:]
        if same and (ours or checked) and os.fstat(self.data).st_size == self.size:
            done = [n for (n,) in _COUNT.iter_unpack(raw[_HEADER.size :])]
            if all(done[n] <= _length(self.span(n)) for n in range(self.block_count)):
                os.pwrite(self._map, header, 0)
                return done
        os.ftruncate(self._map, 0)
        os.ftruncate(self.data, 0)
        os.ftruncate(self.data, self.size)
        os.pwrite(self._map, header + bytes(self.block_count * _COUNT.size), 0)
        return [0] * self.block_count

    def _set(self, block: int, count: int) -> None:
        self.received[block] = self._told[block] = count
        os.pwrite(self._map, _COUNT.pack(count), _HEADER.size + block * _COUNT.size)


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _lock(path: Path) -> int:
    """Locked, and still the file of that name: who finishes a part takes its folder away."""
    while True:
        try:
            ensure_private_folder(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue
        except FileExistsError:  # also of a folder that went before mkdir looked again
            if path.parent.is_file():
                raise
            continue
        if not try_lock(descriptor):
            os.close(descriptor)
            raise PartialFileLocked
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)
