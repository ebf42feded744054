"""One file that is being downloaded: its bytes on the disk, its digests and its blocks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.cache.partial_file import PartialFile
from prefect_bt.weights.download.ordered_digest import OrderedDigest
from prefect_bt.weights.sources.file_listing import ListedFile, create_digests, describe_mismatch

_SLICE_BYTES: Final = 256 << 10
"""Bytes that are written and hashed at a time: they stay in the processor's cache meanwhile."""


class SequentialFile:
    """A file on the disk whose bytes arrive in order. A kill loses it."""

    def __init__(self, path: Path) -> None:
        self._path, self._writer = path, path.open("xb")

    def write(self, _at: int, view: memoryview) -> None:
        self._writer.write(view)

    def clear(self) -> None:
        self._writer.seek(0)
        self._writer.truncate()

    def finalize(self) -> Path:
        """Close the verified file and return its path."""
        os.fchmod(self._writer.fileno(), 0o444)
        self._writer.close()
        return self._path

    def remove(self) -> None:
        """Delete and close the file, unless it was moved."""
        self._path.unlink(missing_ok=True)
        self._writer.close()


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
        self._meter = meter
        self._lock = threading.Lock()
        self.restart()
        if self.part:
            self.received = self.part.received_bytes
            meter.add_present(self.received)

    def restart(self) -> None:
        """Forget what was hashed and counted, and the bytes of a sequential file."""
        if self.received and isinstance(self.kept, SequentialFile):
            self.kept.clear()
        self._meter.subtract(self.received)
        self.received = 0
        self._digest = OrderedDigest(create_digests(self.listed, self.listed.size or 0))

    def write(self, at: int, piece: memoryview) -> None:
        """Keep bytes, and hash them if they are the next ones."""
        for begin in range(0, len(piece), _SLICE_BYTES):
            view = piece[begin : begin + _SLICE_BYTES]
            self.kept.write(at + begin, view)
            self._digest.offer(at + begin, view)
        with self._lock:
            self.received += len(piece)
        self._meter.add_transferred(len(piece))

    def catch_up(self, is_stopped: Callable[[], bool]) -> None:
        """Hash what arrived before the bytes in front of it."""
        if self.part:
            self._digest.catch_up(self.part, is_stopped)

    @property
    def sha256(self) -> str:
        """Return the digest of the complete file."""
        return self._digest.hexdigests()["sha256"]

    def find_mismatch(self) -> str:
        """Return how the file differs from what the source listed; "" when it does not."""
        return describe_mismatch(self.listed, self.received, self._digest.hexdigests())
