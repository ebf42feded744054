"""Notifications of changes in folders by the kernel: inotify(7), which Python lacks.

They are only hints: there are none for writes through a memory map or by another machine, and the
queue may overflow. Users of this module read the files, and now and then all of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_MOVE_SELF, _OVERFLOW, _IGNORED, _ISDIR = 0x800, 0x4000, 0x8000, 0x40000000
_ONLYDIR: Final = 0x01000000
_WATCH_MASK: Final = (
    _MODIFY
    | _ATTRIB
    | _CLOSE_WRITE
    | _MOVED_FROM
    | _MOVED_TO
    | _CREATE
    | _DELETE
    | _MOVE_SELF
    | _ONLYDIR
)
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_HEADER: Final = struct.Struct("iIII")
_BUFFER: Final = 256 * 1024
MAX_WATCHES: Final = 20_000
"""Maximum number of watches. The kernel counts them per user, so a job must not take them all."""


class FolderEvent(NamedTuple):
    """Something about `name` in `folder`, as `add` was given it, or about the folder itself where
    the name is empty."""

    folder: str
    name: str
    is_folder: bool = False


OVERFLOW_EVENT: Final = FolderEvent("", "")


class Inotify:
    """Folders under watch. For one thread."""

    def __init__(self) -> None:
        """Raise OSError if the kernel grants this user no more instances."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        # Links can lead to one folder by several paths.
        self._folders: dict[int, set[str]] = {}

    def add_watch(self, folder: str, descriptor: int) -> None:
        """Watch an open folder, without the folders below it; events name it `folder`.

        Raises OSError if the folder is gone, or for too many watches (ENOSPC).
        """
        if len(self._folders) >= MAX_WATCHES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
        # By its path, a link in it would be followed to a folder of this machine (volume_links.py).
        opened = f"/proc/self/fd/{descriptor}".encode()
        watch = self._libc.inotify_add_watch(self._fd, opened, _WATCH_MASK)
        if watch < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
        self._folders.setdefault(watch, set()).add(folder)

    def wait(self, seconds: float) -> bool:
        """Return whether there are events, after at most `seconds`."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(max(0.0, seconds) * 1000))

    def read_events(self) -> set[FolderEvent]:
        """Return the events since the last call; does not block."""
        found: set[FolderEvent] = set()
        while True:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                return found
            found.update(self._parse_events(data))

    def close(self) -> None:
        os.close(self._fd)

    def _parse_events(self, data: bytes) -> Iterator[FolderEvent]:
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            if mask & _OVERFLOW:
                yield OVERFLOW_EVENT
            elif mask & _IGNORED:
                for folder in self._folders.pop(watch, ()):
                    yield FolderEvent(folder, "", is_folder=True)
            else:
                is_folder = bool(mask & _ISDIR)
                for folder in self._folders.get(watch, ()):
                    yield FolderEvent(folder, name, is_folder)
