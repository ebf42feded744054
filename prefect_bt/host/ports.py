"""A port for each gang of this machine, because nodes that share a host share its ports.

A reservation is an abstract socket with the port in its name, bound by the launcher of the gang and
inherited by every guard and agent. Its scope is the network namespace (all state folders, all
users), and the kernel releases it with the last process that has it. Any local user can bind those
names, too. So the holder of a name listens on it, and the kernel tells its user: names of other
users count while they are few. If more than MAX_FOREIGN are taken, none of them counts, and the
reservation is the flock of `<state_dir>/ports/<number>`, which only the folder's owner can take.
"""

from __future__ import annotations

import os
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.job_lock import is_free, open_locked

FIRST_PORT: Final = 20000
LAST_PORT: Final = 32767
"""Range above the registered services, below the ports that Linux assigns to clients."""
WELL_KNOWN_PORTS: Final = frozenset({25565, 27017, 29400, 29500})
"""Ports in the range that common programs use; the last two are PyTorch's."""
MAX_FOREIGN: Final = 512
"""Maximum number of names of other users that count as reservations: a gang has one."""
_BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("3i")
"""Format of pid, uid, gid (socket(7), SO_PEERCRED)."""

_IPV4_SETTINGS = Path("/proc/sys/net/ipv4")


_NO_FREE_PORT: Final = "no port between {first} and {last} is free for the gang's rendezvous"


class NoFreePort(OSError):
    """Error: every port is in use, or reserved by a running gang."""


class ReservedPort(NamedTuple):
    """A free port, reserved while a process has the descriptor open."""

    number: int
    descriptor: int


def reserve_port(gang: str, *, state_dir: Path) -> ReservedPort:
    """Return a free port that no other gang has; the same gang gets the same port if possible."""
    foreign = 0
    for number in _candidates(gang):
        descriptor = _reserve_by_socket(number, state_dir)
        if descriptor is not None:
            if is_port_free(number):
                return ReservedPort(number, descriptor)
            os.close(descriptor)
        elif not _is_held_by_own_user(number):
            foreign += 1
            if foreign > MAX_FOREIGN:
                return _reserve_by_file_only(gang, state_dir)
    raise NoFreePort(_NO_FREE_PORT.format(first=FIRST_PORT, last=LAST_PORT))


def _reserve_by_file_only(gang: str, state_dir: Path) -> ReservedPort:
    """Reserve a port by flock, on a machine where another user has taken the names."""
    for number in _candidates(gang):
        if _is_held_by_own_user(number):
            continue
        descriptor = _reserve_by_file(number, state_dir)
        if descriptor is not None:
            if is_port_free(number):
                return ReservedPort(number, descriptor)
            os.close(descriptor)
    raise NoFreePort(_NO_FREE_PORT.format(first=FIRST_PORT, last=LAST_PORT))


def is_port_free(number: int) -> bool:
    """Return whether a server could listen at the port on every address of this machine."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True


def _candidates(gang: str) -> Iterator[int]:
    """Yield the whole range once, from the port that the gang's name determines."""
    avoided = {*WELL_KNOWN_PORTS, *_reserved_ports()}
    low, high = _ephemeral_range()
    numbers = [
        n for n in range(FIRST_PORT, LAST_PORT + 1) if n not in avoided and not low <= n <= high
    ]
    numbers = numbers or [n for n in range(FIRST_PORT, LAST_PORT + 1) if n not in avoided]
    start = zlib.crc32(gang.encode()) % len(numbers)
    yield from numbers[start:]
    yield from numbers[:start]


def _ephemeral_range() -> tuple[int, int]:
    """Return the first and last port that the kernel assigns to clients."""
    try:
        low, high = (_IPV4_SETTINGS / "ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 49152, 65535


def _reserved_ports() -> set[int]:
    """Return the ports that the administrator reserves, written as `8080,9000-9010`."""
    found: set[int] = set()
    with suppress(OSError, ValueError):
        for part in (_IPV4_SETTINGS / "ip_local_reserved_ports").read_text().strip().split(","):
            first, _, last = part.partition("-")
            if first:
                found.update(range(int(first), int(last or first) + 1))
    return found


def _reserve_by_socket(number: int, state_dir: Path) -> int | None:
    """Return the descriptor that reserves the port; None if another process has reserved it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(_socket_name(number))
        holder.listen(_BACKLOG)
    except OSError:
        holder.close()
        return None
    if _is_reserved_by_file(number, state_dir):
        holder.close()
        return None
    return holder.detach()


def _socket_name(number: int) -> str:
    return f"\0prefect-bt/port/{number}"


def _is_held_by_own_user(number: int) -> bool:
    """Return whether a process of our own user has claimed the port by name. Never waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_socket_name(number))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:  # nobody listens, or too many processes ask
            return False
    return _CREDENTIALS.unpack(credentials)[1] == os.geteuid()


def _is_reserved_by_file(number: int, state_dir: Path) -> bool:
    """Return whether a gang of this state folder claimed the port by flock, not by name."""
    return not is_free(state_dir / "ports" / str(number))


def _reserve_by_file(number: int, state_dir: Path) -> int | None:
    folder = state_dir / "ports"
    ensure_private_folder(folder)
    return open_locked(folder / str(number))
