"""Write data from memory to the disk early, so that the sync at the end is short."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYNC_FILE_RANGE_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE: begin, do not wait."""
_MIN_BYTES: Final = 1 << 20


def start_writeback(fd: int, offset: int, size: int) -> None:
    """Begin to write out the range, without waiting, and keep it in memory.

    Measured on 4 GiB, against leaving all of it to the sync, and against POSIX_FADV_DONTNEED, which
    begins to write too: 1.3, 1.1 and 0.8 GB/s from memory, 1.1, 1.0 and 0.7 from the disk.
    """
    if size >= _MIN_BYTES:
        _LIBC.sync_file_range(
            ctypes.c_int(fd),
            ctypes.c_int64(offset),
            ctypes.c_int64(size),
            ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
        )


def sync_file_system(folder: Path) -> None:
    """Wait until all data of the folder's file system is on the disk. Raise OSError."""
    with _open_folder(folder) as fd:
        if _LIBC.syncfs(ctypes.c_int(fd)) == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on the disk. Raise OSError."""
    with _open_folder(folder) as fd:
        os.fsync(fd)


@contextmanager
def _open_folder(folder: Path) -> Generator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
