"""Copy a file at the speed of the disk: by reference, else in the kernel, with the hash beside it.

While the kernel copies the next step, another thread hashes the last one from memory and starts its
writeback, so that the sync at the end has little left to do. The hash is that of the copy.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from typing import TYPE_CHECKING, Final

from prefect_bt.host.writeback import start_writeback
from prefect_bt.object_store.protocols import ByteCallback

if TYPE_CHECKING:
    from concurrent.futures import Future

_STEP: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_FICLONE: Final = 0x40049409
_UNSUPPORTED_ERRNOS: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


def copy_bytes(source: int, target: int, *, on_bytes: ByteCallback | None = None) -> None:
    """Copy an open file into an empty one."""
    if _try_reflink(source, target):
        _report(on_bytes, os.fstat(target).st_size)
        return
    at, step = 0, _copy_in_kernel
    while True:
        try:
            copied = step(source, target, at)
        except OSError as error:
            if at or step is _copy_in_user_space or error.errno not in _UNSUPPORTED_ERRNOS:
                raise
            copied = 0
        if not copied:
            # For files of /proc, among others, the kernel reports an end at once.
            if at or step is _copy_in_user_space:
                return
            step = _copy_in_user_space
            continue
        at += copied
        _report(on_bytes, copied)


def copy_and_hash(source: int, target: int, *, on_bytes: ByteCallback | None = None) -> str:
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
        _report(on_bytes, copied)
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


def _try_reflink(source: int, target: int) -> bool:
    """Make the target a reflink, which shares the bytes of the source until one is written."""
    try:
        import fcntl

        fcntl.ioctl(target, _FICLONE, source)
    except (ImportError, OSError):
        return False
    return True


def _copy_in_kernel(source: int, target: int, at: int) -> int:
    if not hasattr(os, "copy_file_range"):
        return 0
    return os.copy_file_range(source, target, _STEP, at, at)


def _copy_in_user_space(source: int, target: int, at: int) -> int:
    view = memoryview(os.pread(source, _READ_BYTES, at))
    copied = len(view)
    while view:
        count = os.pwrite(target, view, at)
        view, at = view[count:], at + count
    return copied


def _report(on_bytes: ByteCallback | None, size: int) -> None:
    if on_bytes is not None:
        on_bytes(size)
