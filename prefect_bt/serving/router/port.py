"""The port of a deployment: chosen once, then always the same one."""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections.abc import Iterator
from typing import Final

from prefect_bt.errors import ServerError
from prefect_bt.serving.router.deployment_folder import BACKLOG, ListenAddress, RouterFolder

FIRST_PORT: Final = 19000
LAST_PORT: Final = 19899
"""Below the ports of gangs (host.ports), and what Linux hands out to clients."""


def open_listening_socket(place: RouterFolder, host: str) -> socket.socket:
    """Where `listen.json` says; without one at a free port of `host`, which is
    noted.

    ServerError when that cannot be.
    """
    known = place.read_listen_address()
    if known is not None:
        return _bind_known_address(place, known)
    if place.has_listen_file:
        raise ServerError(
            f"The address of deployment {place.name!r} cannot be read from listen.json.",
            next_step="Give its host and port.",
        )
    for port in _candidates(place):
        try:
            found = _socket(ListenAddress(host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _bind_error(place, ListenAddress(host, port), error) from error
            continue
        place.write_listen_address(ListenAddress(host, port))
        return found
    raise ServerError(
        f"No port between {FIRST_PORT} and {LAST_PORT} is free for deployment {place.name!r}.",
        next_step="Choose a port for it.",
    )


def _bind_known_address(place: RouterFolder, address: ListenAddress) -> socket.socket:
    try:
        return _socket(address)
    except (OSError, OverflowError) as error:
        raise _bind_error(place, address, error) from error


def _bind_error(place: RouterFolder, address: ListenAddress, error: Exception) -> ServerError:
    # create_server adds to an error's text what is said here already.
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number is not None and number > 0 else error
    return ServerError(
        f"Deployment {place.name!r} cannot listen at {address.host}:{address.port}: {reason}.",
        next_step="Stop the program that listens there, or choose another port (or host).",
    )


def _socket(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)


def _candidates(place: RouterFolder) -> Iterator[int]:
    """The whole range once, beginning where the name says, without other deployments' ports."""
    others = (p.read_listen_address() for p in RouterFolder.iter_all(place.state_dir) if p != place)
    taken = {other.port for other in others if other is not None}
    count = LAST_PORT - FIRST_PORT + 1
    start = zlib.crc32(place.id.encode()) % count
    for step in range(count):
        port = FIRST_PORT + (start + step) % count
        if port not in taken:
            yield port
