"""`prefect-bt checkpoints serve`, and the file servers that `up` and `down` start and stop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Annotated, Final

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

_MAX_PORT: Final = 65535


def serve_checkpoints(
    *,
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 for other machines.")] = (
        process.LOOPBACK
    ),
    port: Annotated[
        int | None,
        Parameter(
            help="Port; default: the last one, or a free port.",
            validator=Number(gte=1, lte=_MAX_PORT),
        ),
    ] = None,
    address: Annotated[
        str, Parameter(help="Base URL that other machines use, such as http://box.example:8700.")
    ] = "",
    terminal: InjectedTerminal,
) -> int:
    """Serve the files until Ctrl-C, to this machine or to others.

    `get_checkpoint_urls` starts such a server for this machine by itself. A URL is signed and
    valid for seven days; everyone who has it can read its file.

    Examples:

    `prefect-bt checkpoints serve --host 0.0.0.0 --port 8700 --address http://box.example:8700`
    """

    place = _get_served_folder()
    if process.is_wildcard(host) and not address:
        raise PrefectBtError(
            f"{host!r} is not an address that other machines can use.",
            next_step="Give the URL of this machine: --address http://<name>:<port>.",
        )
    base = _validate_base_url(address)
    with process.become_server(place, host=host, port=port, base=base) as listening:
        known = place.read_record()
        terminal.echo(f"Serving {place.root} at {known.base if known else base}; Ctrl-C stops it.")
        terminal.echo("URLs: prefect-bt get_checkpoint_urls")
        serve(
            FileServer(place.root, place.ensure_signing_key(), place.store_id),
            listening,
            idle_timeout=math.inf,
        )
    return OK


def restart_file_server(*, echo: Echo) -> None:
    """Start the store's file server again, if it ever ran, so that its URLs work."""
    root = find_local_root(_store_url())
    if root is None:
        return
    place = FileServerFolder.for_store(root, Settings().state_dir)
    if place.read_record() is not None:
        known = process.ensure_server(place, environment=os.environ)
        echo(f"Checkpoint files: {known.base}")


def stop_file_servers(*, echo: Echo) -> None:
    """Stop every file server of this machine's state folder."""
    for known in process.stop_all_servers(Settings().state_dir):
        echo(f"Stopped the file server at {known.base}; `prefect-bt up` starts it again.")


def _get_served_folder() -> FileServerFolder:
    root = find_local_root(_store_url())
    if root is None:
        raise PrefectBtError(
            f"{_store_url()} needs no file server: a bucket has URLs of its own.",
            next_step="Create them: prefect-bt get_checkpoint_urls.",
        )
    return FileServerFolder.for_store(root, Settings().state_dir)


def _store_url() -> str:

    return open_store(Settings().store).url


def _validate_base_url(address: str) -> str:
    if address and not address.startswith(("http://", "https://")):
        raise PrefectBtError(
            f"--address {address!r} is not a URL.", next_step="Write http://box.example:8700."
        )
    return address.rstrip("/")
