"""Port of a deployment: chosen once, and kept."""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections.abc import Iterator
from typing import Final

from prefect_bt.errors import ServerError
from prefect_bt.serving.router.deployment_folder import ListenAddress, RouterFolder

FIRST_PORT: Final = 19000
LAST_PORT: Final = 19899
"""Below the ports of gangs (host.ports) and the ports that Linux assigns to clients."""
_BACKLOG: Final = 1024


def open_listening_socket(place: RouterFolder, host: str) -> socket.socket:
    """Listen at the address of listen.json; without one choose a free port of `host` and store it.

    Raise ServerError if no socket can be opened.
    """
    known = place.read_listen_address()
    if known is not None:
        return _bind(place, known)
    if place.has_listen_file:
        raise ServerError(
            f"The address of deployment {place.name!r} cannot be read from listen.json.",
            next_step="Give its host and port.",
        )
    for port in _candidates(place):
        address = ListenAddress(host, port)
        try:
            found = _bind(place, address)
        except ServerError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
        else:
            place.write_listen_address(address)
            return found
    raise ServerError(
        f"No port between {FIRST_PORT} and {LAST_PORT} is free for deployment {place.name!r}.",
        next_step="Choose a port for it.",
    )


def _bind(place: RouterFolder, address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        # create_server adds the address to the text of an error, which has it already here.
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else error
        raise ServerError(
            f"Deployment {place.name!r} cannot listen at {address.host}:{address.port}: {reason}.",
            next_step="Stop the program that listens there, or choose another port (or host).",
        ) from error


def _candidates(place: RouterFolder) -> Iterator[int]:
    """Yield the ports of the range that no other deployment has, from one given by the name."""
    others = (p.read_listen_address() for p in RouterFolder.iter_all(place.state_dir) if p != place)
    taken = {other.port for other in others if other is not None}
    count = LAST_PORT - FIRST_PORT + 1
    start = zlib.crc32(place.id.encode()) % count
    for step in range(count):
        port = FIRST_PORT + (start + step) % count
        if port not in taken:
            yield port
