"""`prefect-bt checkpoints serve`, and the file servers that `up` and `down` start and stop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import PrefectBtError
from prefect_bt.file_server import process
from prefect_bt.file_server.app import FileServer, serve
from prefect_bt.file_server.server_folder import FileServerFolder, find_local_root
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings

Echo = Callable[[str], None]


def serve_checkpoints(
    *,
    host: str = process.LOOPBACK,
    port: Annotated[int | None, Parameter(validator=Number(gte=1, lte=65535))] = None,
    address: str = "",
    terminal: InjectedTerminal,
) -> int:
    """Serve the files until Ctrl-C, to this machine or to others.

    `get_checkpoint_urls` starts such a server for this machine by itself. A URL is signed and
    valid for seven days; everyone who has it can read its file.

    Args:
        host: Address to listen on; 0.0.0.0 for other machines.
        port: Port; default: the last one, or a free port.
        address: Base URL that other machines use, such as http://box.example:8700.

    Examples:

    `prefect-bt checkpoints serve --host 0.0.0.0 --port 8700 --address http://box.example:8700`
    """
    place = _find_server_folder()
    if place is None:
        raise PrefectBtError(
            f"{Settings().store} needs no file server: a bucket has URLs of its own.",
            next_step="Create them: prefect-bt get_checkpoint_urls.",
        )
    if process.is_wildcard(host) and not address:
        raise PrefectBtError(
            f"{host!r} is not an address that other machines can use.",
            next_step="Give the URL of this machine: --address http://<name>:<port>.",
        )
    if address and not address.startswith(("http://", "https://")):
        raise PrefectBtError(
            f"--address {address!r} is not a URL.", next_step="Write http://box.example:8700."
        )
    base = address.rstrip("/")
    with process.become_server(place, host=host, port=port, base=base) as listening:
        known = place.read_record()
        terminal.echo(f"Serving {place.root} at {known.base if known else base}; Ctrl-C stops it.")
        terminal.echo("URLs: prefect-bt get_checkpoint_urls")
        server = FileServer(place.root, place.ensure_signing_key(), place.store_id)
        serve(server, listening, idle_timeout=math.inf)
    return OK


def restart_file_server(*, echo: Echo) -> None:
    """Start the store's file server again, if it ever ran, so that its URLs work."""
    place = _find_server_folder()
    if place and place.read_record():
        known = process.ensure_server(place, environment=os.environ)
        echo(f"Checkpoint files: {known.base}")


def stop_file_servers(*, echo: Echo) -> None:
    """Stop every file server of this machine's state folder."""
    for known in process.stop_all_servers(Settings().state_dir):
        echo(f"Stopped the file server at {known.base}; `prefect-bt up` starts it again.")


def _find_server_folder() -> FileServerFolder | None:
    """Return the folder of the store's file server; None for a bucket."""
    settings = Settings()
    root = find_local_root(open_store(settings.store).url)
    return FileServerFolder.for_store(root, settings.state_dir) if root else None
