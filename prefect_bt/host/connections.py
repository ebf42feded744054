"""Established TCP connections of processes, from /proc (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

_ESTABLISHED: Final = "01"
_MAPPED: Final = "0000000000000000FFFF0000"
"""How an IPv4 address begins in the table of IPv6 connections."""


class Connection(NamedTuple):
    """One end of a connection: hexadecimal `address:port` of both ends, and its socket's inode."""

    local: str
    remote: str
    inode: str


def list_connections(pid: int | str = "self") -> list[Connection]:
    """Return the established connections in the network namespace of a process."""
    found: list[Connection] = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{table}") as file:  # noqa: PTH123
            next(file, None)
            for fields in map(str.split, file):
                if fields[3] == _ESTABLISHED:
                    local, remote = (end.removeprefix(_MAPPED) for end in fields[1:3])
                    found.append(Connection(local, remote, fields[9]))
    return found


def list_socket_inodes(pids: Iterable[int]) -> set[str]:
    """Return the inodes of the sockets that the processes have open."""
    found: set[str] = set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208 (as in host.processes)
                with suppress(OSError):
                    target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
                    if target.startswith("socket:["):
                        found.add(target[len("socket:[") : -1])
    return found


def has_outside_peer(connections: Sequence[Connection]) -> bool:
    """Return whether the other end of a connection is not among `connections`.

    Processes of one rank connect to each other (a launcher, a logger): that is no work outside.
    """
    ends = {(one.local, one.remote) for one in connections}
    return any((one.remote, one.local) not in ends for one in connections)
