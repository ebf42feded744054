"""One file's bytes into another, at the speed of the disk: by reference where the file system can,
else by the kernel, with the hash computed beside it.

Two threads take turns on one target: this one has the kernel copy the next step, the other hashes
what the last one wrote, while it is in memory, and then asks for it to be written out, so that the
sync at the end has little left to do. What is hashed is the copy, not the source: what was written
is what has to be right.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Generator
from typing import Final

from prefect_bt.host.writeback import start_writeback
from prefect_bt.object_store.protocols import ByteCallback

_STEP: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_FICLONE: Final = 0x40049409
_UNSUPPORTED_ERRNOS: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


def copy_bytes(source: int, target: int, *, on_bytes: ByteCallback | None = None) -> None:
    """From begin to end; both are open files, the target empty."""
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
            # The kernel sees an end at once in files that it makes up (/proc) and some others.
            if at or step is _copy_in_user_space:
                return
            step = _copy_in_user_space
            continue
        at += copied
        _report(on_bytes, copied)


def copy_and_hash(source: int, target: int, *, on_bytes: ByteCallback | None = None) -> str:
    """As `copy_bytes`; the sha256 of the target, in hex."""
    size = os.fstat(source).st_size
    if size <= _STEP:
        copy_bytes(source, target, on_bytes=on_bytes)
        return _BackgroundHash(target, size).hexdigest()
    behind = _BackgroundHash(target, size)

    def follow(copied: int) -> None:
        _report(on_bytes, copied)
        behind.advance(copied)

    with behind.run_in_background():
        copy_bytes(source, target, on_bytes=follow)
    return behind.hexdigest()


class _BackgroundHash:
    """Of a file that grows, from a thread of its own. It stays behind what it was told of."""

    def __init__(self, fd: int, size: int) -> None:
        """`size` is what may be expected."""
        self._fd, self._digest, self._at = fd, hashlib.sha256(), 0
        self._buffer = memoryview(bytearray(min(_READ_BYTES, max(size, 1))))
        self._grown, self._end, self._over = threading.Condition(), 0, False
        self._error: OSError | None = None

    def advance(self, size: int) -> None:
        with self._grown:
            self._end += size
            self._grown.notify()

    @contextlib.contextmanager
    def run_in_background(self) -> Generator[None]:
        thread = threading.Thread(target=self._run, name="hash", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._grown:
                self._over = True
                self._grown.notify()
            thread.join()

    def hexdigest(self) -> str:
        """The rest as well."""
        if self._error:
            raise self._error
        self._read(os.fstat(self._fd).st_size)
        return self._digest.hexdigest()

    def _run(self) -> None:
        while True:
            with self._grown:
                self._grown.wait_for(lambda: self._end > self._at or self._over)
                end = self._end
            if end <= self._at:
                return
            try:
                self._read(end)
            except OSError as error:
                self._error = error
                return

    def _read(self, end: int) -> None:
        begin = self._at
        while self._at < end:
            most = min(len(self._buffer), end - self._at)
            count = os.preadv(self._fd, [self._buffer[:most]], self._at)
            if not count:
                break
            self._digest.update(self._buffer[:count])
            self._at += count
        start_writeback(self._fd, begin, self._at - begin)


def _try_reflink(source: int, target: int) -> bool:
    """A reflink: shares the bytes, copies on write; instant where the file system can."""
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
