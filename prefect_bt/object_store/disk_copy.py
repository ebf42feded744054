"""Copy a file at the speed of the disk: by reference, else in the kernel, with the hash beside it.

While the kernel copies the next step, another thread hashes the last one from memory and starts its
writeback, so that the sync at the end has little left to do. The hash is that of the copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from prefect_bt.host.writeback import start_writeback
from prefect_bt.object_store.protocols import ByteCallback, ignore_bytes

if TYPE_CHECKING:
    from concurrent.futures import Future

_STEP: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_FICLONE: Final = 0x40049409
_UNSUPPORTED_ERRNOS: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


def copy_bytes(source: int, target: int, *, on_bytes: ByteCallback = ignore_bytes) -> None:
    """Copy an open file into an empty one."""
    at = 0
    for step in (_reflink, _copy_in_kernel, _copy_in_user_space):
        while copied := step(source, target, at):
            at += copied
            on_bytes(copied)
        if at:
            return


def copy_and_hash(source: int, target: int, *, on_bytes: ByteCallback = ignore_bytes) -> str:
    """Copy as `copy_bytes`. Return the SHA-256 of the target, in hex."""
    size = os.fstat(source).st_size
    hashed = _FileHash(target, size)
    if size <= _STEP:
        copy_bytes(source, target, on_bytes=on_bytes)
        return hashed.hexdigest()
    from concurrent.futures import ThreadPoolExecutor

    end, running = 0, deque["Future[None]"]()

    def follow(copied: int) -> None:
        nonlocal end
        on_bytes(copied)
        end += copied
        running.append(pool.submit(hashed.advance, end))
        while running and running[0].done():
            running.popleft().result()

    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        copy_bytes(source, target, on_bytes=follow)
    for one in running:
        one.result()
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


def _reflink(source: int, target: int, at: int) -> int:
    """Share the bytes of the source until one is written. Return their number, or 0."""
    if at:
        return 0
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return 0
    return os.fstat(target).st_size


def _copy_in_kernel(source: int, target: int, at: int) -> int:
    """Return the number of copied bytes; 0 at the end, and for files that the kernel cannot copy.

    For files of /proc, among others, the kernel reports an end at once.
    """
    if not hasattr(os, "copy_file_range"):  # Python was built for an older C library
        return 0
    try:
        return os.copy_file_range(source, target, _STEP, at, at)
    except OSError as error:
        if at or error.errno not in _UNSUPPORTED_ERRNOS:
            raise
        return 0


def _copy_in_user_space(source: int, target: int, at: int) -> int:
    view = memoryview(os.pread(source, _READ_BYTES, at))
    copied = len(view)
    while view:
        count = os.pwrite(target, view, at)
        view, at = view[count:], at + count
    return copied
