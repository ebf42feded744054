"""`prefect-bt checkpoints serve`: serve the checkpoint files of a local store."""

from __future__ import annotations

import math
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import PrefectBtError, UsageError
from prefect_bt.file_server import process
from prefect_bt.file_server.app import FileServer, serve
from prefect_bt.host.service import LOOPBACK, is_wildcard
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings


def serve_checkpoints(
    *,
    host: str = LOOPBACK,
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
    settings = Settings()
    place = process.find_server_folder(open_store(settings.store).url, settings.state_dir)
    if place is None:
        raise PrefectBtError(
            f"{settings.store} needs no file server: a bucket signs its own URLs.",
            next_step="Create them: prefect-bt get_checkpoint_urls.",
        )
    if is_wildcard(host) and not address:
        raise UsageError(
            f"{host!r} is not an address that other machines can use.",
            next_step="Give the URL of this machine: --address http://<name>:<port>.",
        )
    if address and not address.startswith(("http://", "https://")):
        raise UsageError(
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
