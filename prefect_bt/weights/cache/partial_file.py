"""A large file that is being downloaded, with a map of the granules that have arrived.

    parts/<id>/lock    flock of the process that downloads it
    parts/<id>/data    the file at its full length, with holes
    parts/<id>/map     one byte a granule: 1 when all of it has arrived

Bytes are written before the map, so a kill never leaves a mark without its bytes. A power cut may,
so the id of a file without a listed digest is another one after each boot.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.job_lock import try_lock
from prefect_bt.host.writeback import start_writeback
from prefect_bt.weights.worker_threads import Closed

GRANULE_BYTES: Final = 1 << 20
"""The unit of the map. A kill costs a connection at most one granule and its memory."""
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine; "" where the kernel does not show it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def partial_file_id(identity: str) -> str:
    """Return the name of the folder of a file with this `digest_index.file_identity`."""
    boot = boot_id() if identity.startswith("tag:") else ""
    return hashlib.sha256(f"{identity}{boot}".encode()).hexdigest()[:32]


def count_received(folder: Path) -> int:
    """Return the number of bytes of a partial file that have arrived, without taking its lock."""
    with suppress(OSError):
        granules = (folder / "map").read_bytes().count(1)
        return min((folder / "data").stat().st_size, GRANULE_BYTES * granules)
    return 0


class PartialFileLocked(Exception):
    """Another process downloads this file."""


class PartialFile:
    """An open partial file, locked by this process. Threads write different granules."""

    def __init__(self, folder: Path, size: int) -> None:
        """Raise PartialFileLocked when another process has locked it."""
        self.folder, self.size = folder, size
        self._count = -(-size // GRANULE_BYTES)
        self._closed = False
        self._lock = threading.Lock()
        """Held by a writer, because the kernel lets concurrent writers of one file spin."""
        with ExitStack() as opened:
            opened.callback(os.close, _lock(folder / "lock"))
            self._data = _open_data(folder / "data")
            opened.callback(os.close, self._data)
            self._map = os.open(folder / "map", _CREATE, 0o644)
            opened.callback(os.close, self._map)
            self._load_map()
            self._opened = opened.pop_all()

    @property
    def received_bytes(self) -> int:
        return self.size - sum(len(run) for run in self.missing_runs(self.size))

    def missing_runs(self, most: int) -> Iterator[range]:
        """Yield the missing byte ranges, each of whole granules and at most `most` bytes."""
        first = 0
        while (first := self._received.find(0, first)) >= 0:
            limit = min(self._count, first + max(1, most // GRANULE_BYTES))
            end = self._received.find(1, first, limit)
            end = limit if end < 0 else end
            yield range(first * GRANULE_BYTES, min(self.size, end * GRANULE_BYTES))
            first = end

    def has(self, at: int) -> bool:
        """Return whether the granule of this byte has arrived."""
        return bool(self._received[at // GRANULE_BYTES])

    def write(self, at: int, view: bytes | memoryview) -> None:
        """Write bytes. A granule counts once its last byte is written: write it in order."""
        end = at + len(view)
        first, last = at // GRANULE_BYTES, self._count if end == self.size else end // GRANULE_BYTES
        with self._using():
            while view:
                view = view[os.pwrite(self._data, view, end - len(view)) :]
            if first < last:
                self._received[first:last] = b"\1" * (last - first)
                os.pwrite(self._map, self._received[first:last], first)
        start_writeback(self._data, first * GRANULE_BYTES, (last - first) * GRANULE_BYTES)

    def read(self, at: int, buffer: memoryview) -> memoryview:
        """Return bytes from `at` until the buffer is full or the granule ends."""
        rest = GRANULE_BYTES - at % GRANULE_BYTES
        with self._using():
            count = os.preadv(self._data, [buffer[:rest]], at)
        if not count:
            raise OSError(f"{self.folder / 'data'} ended at byte {at}")
        return buffer[:count]

    def finalize(self) -> Path:
        """Sync the verified file to the disk. Return its path."""
        with self._using():
            os.fchmod(self._data, 0o444)
        os.fdatasync(self._data)
        return self.folder / "data"

    def remove(self) -> None:
        """Delete what is left of it, then close it."""
        with suppress(OSError):
            # The lock last: another process then makes another one, and the folder stays.
            for name in ("data", "map", "lock"):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()
        self.close()

    def close(self) -> None:
        """Close the file once no thread reads or writes. Idempotent."""
        with self._lock:
            self._closed = True
            self._opened.close()

    @contextmanager
    def _using(self) -> Generator[None]:
        """Hold the lock. Closed when the file is closed."""
        with self._lock:
            if self._closed:
                raise Closed
            yield

    def _load_map(self) -> None:
        """Continue the map of an earlier process if it is valid, else begin a new one."""
        self._received = bytearray((self.folder / "map").read_bytes())
        is_valid = len(self._received) == self._count and not self._received.strip(b"\0\1")
        if not is_valid or os.fstat(self._data).st_size != self.size:
            self._received = bytearray(self._count)
            os.ftruncate(self._map, 0)  # first, so that a kill leaves no marks without bytes
            os.ftruncate(self._data, 0)
            os.ftruncate(self._data, self.size)
            os.pwrite(self._map, self._received, 0)


def _open_data(path: Path) -> int:
    """Open the data. A kill while it became a blob left it read-only, perhaps one file with it."""
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            path.unlink()
        else:
            path.chmod(0o644)
    return os.open(path, _CREATE, 0o644)


def _lock(path: Path) -> int:
    """Return a locked descriptor of the file at `path`, which a finished download removes."""
    while not path.parent.is_file():
        # Another process may remove the folder meanwhile.
        with suppress(FileNotFoundError, FileExistsError), ExitStack() as opened:
            ensure_private_folder(path.parent)
            descriptor = os.open(path, _CREATE, 0o644)
            opened.callback(os.close, descriptor)
            if not try_lock(descriptor):
                raise PartialFileLocked
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                opened.pop_all()
                return descriptor
    raise NotADirectoryError(f"{path.parent} is a file")
