"""Copy a file at the speed of the disk: in the kernel if it can, with the hash beside it.

The kernel shares the bytes (a reflink) if the file system can. While it copies the next step,
another thread hashes the last one from memory and starts its writeback, so that the sync at the end
has little left to do. The hash is that of the copy.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from prefect_bt.filesystem.rehash import ByteCallback, ignore_progress
from prefect_bt.host.writeback import start_writeback

_STEP: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024


def copy_bytes(source: int, target: int, *, on_bytes: ByteCallback = ignore_progress) -> None:
    """Copy an open file into an empty one."""
    at = 0
    for step in (_copy_in_kernel, _copy_in_user_space):
        while copied := step(source, target, at):
            at += copied
            on_bytes(copied)


def copy_and_hash(source: int, target: int, *, on_bytes: ByteCallback = ignore_progress) -> str:
    """Copy as `copy_bytes`. Return the SHA-256 of the target, in hex."""
    size = os.fstat(source).st_size
    hashed = _FileHash(target, size)
    if size <= _STEP:
        copy_bytes(source, target, on_bytes=on_bytes)
        return hashed.hexdigest()
    from concurrent.futures import ThreadPoolExecutor

    end = 0

    def follow(copied: int) -> None:
        nonlocal end
        on_bytes(copied)
        end += copied
        pool.submit(hashed.advance, end)  # `hexdigest` tries again what fails there

    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        copy_bytes(source, target, on_bytes=follow)
    return hashed.hexdigest()


class _FileHash:
    """The SHA-256 of a file that grows. `size` is the expected size."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._digest, self._at = fd, hashlib.sha256(), 0
        self._buffer = memoryview(bytearray(min(_READ_BYTES, max(size, 1))))

    def advance(self, end: int) -> None:
        """Hash the bytes up to `end`, and start writing them to the disk."""
        begin = self._at
        while self._at < end:
            most = min(len(self._buffer), end - self._at)
            count = os.preadv(self._fd, [self._buffer[:most]], self._at)
            if not count:
                break
            self._digest.update(self._buffer[:count])
            self._at += count
        start_writeback(self._fd, begin, self._at - begin)

    def hexdigest(self) -> str:
        self.advance(os.fstat(self._fd).st_size)
        return self._digest.hexdigest()


def _copy_in_kernel(source: int, target: int, at: int) -> int:
    """Return the number of copied bytes; 0 at the end, and for bytes that the kernel cannot copy.

    It cannot between some file systems, and for files of /proc it reports an end at once.
    """
    try:
        return os.copy_file_range(source, target, _STEP, at, at)
    except (OSError, AttributeError):  # some builds of Python do not have the function
        return 0


def _copy_in_user_space(source: int, target: int, at: int) -> int:
    return os.pwrite(target, os.pread(source, _READ_BYTES, at), at)
