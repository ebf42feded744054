"""One file that is being downloaded: its bytes on the disk, its digests and its blocks."""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedWriter, BytesIO
from pathlib import Path
from typing import Any, Final

from prefect_bt.filesystem.lfs_pointer import MAX_POINTER_BYTES
from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES, PartialFile
from prefect_bt.weights.sources.file_listing import ListedFile, create_digests

MAX_KEPT_BYTES: Final = 16 << 20
"""Bytes of a file that are kept in memory until the bytes before them are hashed."""
_SLICE_BYTES: Final = 256 << 10
"""Bytes that are written or read, and hashed, at a time: the processor's cache holds them."""


class OrderedDigest:
    """Digests of a file whose bytes arrive in any order, by name. One thread at a time hashes."""

    def __init__(self, digests: Mapping[str, Any]) -> None:
        self._digests = digests
        self._lock = threading.Lock()
        self._at = 0
        """Number of bytes, from the beginning of the file, that are hashed."""
        self._is_hashing = False
        self._kept: dict[int, memoryview] = {}
        self._kept_bytes = 0

    def offer(self, at: int, view: memoryview) -> None:
        """Hash bytes that are next in the file; keep later ones while there is room."""
        with self._lock:
            if self._is_hashing or at != self._at:
                if at >= self._at and self._kept_bytes < MAX_KEPT_BYTES:
                    self._kept[at] = view
                    self._kept_bytes += len(view)
                return
            self._is_hashing = True
        self._hash(view)

    def catch_up(self, part: PartialFile, is_stopped: Callable[[], bool]) -> None:
        """Read and hash the next bytes that are in the file but were not kept."""
        buffer = memoryview(bytearray(_SLICE_BYTES))
        while not is_stopped():
            with self._lock:
                for at in [at for at in self._kept if at < self._at]:  # read back meanwhile
                    self._kept_bytes -= len(self._kept.pop(at))
                if self._is_hashing or self._at >= part.size or not part.has(self._at):
                    return
                self._is_hashing = True
            self._hash(part.read(self._at, buffer))

    def hexdigests(self) -> dict[str, str]:
        return {name: digest.hexdigest() for name, digest in self._digests.items()}

    def _hash(self, view: memoryview | None) -> None:
        """Hash these bytes and the kept ones that follow. The caller has set `_is_hashing`."""
        while view is not None:
            for digest in self._digests.values():
                digest.update(view)
            with self._lock:
                self._at += len(view)
                view = self._kept.pop(self._at, None)
                self._kept_bytes -= len(view or b"")
                self._is_hashing = view is not None


class SequentialFile:
    """A file whose bytes arrive in order. It is in memory while it is small. A kill loses it."""

    def __init__(self, folder: Path) -> None:
        """`folder` has the file once it is large."""
        self._folder = folder
        self._writer: BytesIO | BufferedWriter = BytesIO()

    def write(self, _at: int, view: memoryview) -> None:
        self._writer.write(view)
        if isinstance(self._writer, BytesIO) and self._writer.tell() > GRANULE_BYTES:
            small, self._path = self._writer, self._folder / f"stream-{uuid.uuid4().hex}"
            self._writer = self._path.open("xb")
            self._writer.write(small.getbuffer())

    @property
    def small_content(self) -> bytes:
        """Return the bytes of a file that may be a git-LFS pointer; none of a larger one."""
        is_small = self._writer.tell() < MAX_POINTER_BYTES
        return self._writer.getvalue() if is_small and isinstance(self._writer, BytesIO) else b""

    def clear(self) -> None:
        self._writer.seek(0)
        self._writer.truncate()

    def move_to(self, place: Path) -> None:
        """Write the verified file to its place, or move it there. FileExistsError or OSError."""
        if isinstance(self._writer, BytesIO):
            _write_read_only(place, self._writer.getbuffer())
            return
        os.fchmod(self._writer.fileno(), 0o444)
        self._path.replace(place)
        self._writer.close()  # last, because the move is repeated in a new folder

    def remove(self) -> None:
        """Close and delete the file, unless it was moved."""
        self._writer.close()
        if not isinstance(self._writer, BytesIO):
            self._path.unlink(missing_ok=True)


def _write_read_only(path: Path, view: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        os.fchmod(descriptor, 0o444)  # whatever the umask is
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


@dataclass
class Block:
    """Bytes of one file for one thread. `at`: the next one to request; `end` None: to the end."""

    file: OpenFile
    at: int
    end: int | None


class OpenFile:
    """A file, the blocks of it that are missing, and its digests."""

    def __init__(
        self,
        listed: ListedFile,
        kept: PartialFile | SequentialFile,
        runs: Sequence[tuple[int, int | None]],
        meter: ProgressMeter,
    ) -> None:
        self.listed, self.kept = listed, kept
        self.part = kept if isinstance(kept, PartialFile) else None
        self.blocks = deque(Block(self, at, end) for at, end in runs)
        """Blocks that no thread has taken."""
        self.open_blocks = len(runs)
        """Blocks that are not finished."""
        self.received = 0
        """Bytes that are here, all of which the meter counts."""
        self.lacks_ranges = False
        self._meter, self._lock = meter, threading.Lock()
        self.restart()
        self.received = self.part.received_bytes if self.part else 0
        meter.add_present(self.received)

    def restart(self) -> None:
        """Forget what was hashed and counted, and the bytes of a sequential file."""
        if isinstance(self.kept, SequentialFile):
            self.kept.clear()
        self._meter.add_present(-self.received)
        self.received = 0
        self.digest = OrderedDigest(create_digests(self.listed, self.listed.size or 0))

    def discard(self) -> None:
        """Forget the bytes of the file outside of the staging tree."""
        self.restart()
        self.kept.remove()

    def write(self, at: int, piece: memoryview) -> None:
        """Keep bytes, and hash them if they are the next ones."""
        for begin in range(0, len(piece), _SLICE_BYTES):
            view = piece[begin : begin + _SLICE_BYTES]
            self.kept.write(at + begin, view)
            self.digest.offer(at + begin, view)
        with self._lock:
            self.received += len(piece)
        self._meter.add_transferred(len(piece))
