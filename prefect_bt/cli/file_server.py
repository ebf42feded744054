"""`prefect-bt checkpoints serve`, and what `up` and `down` do about file servers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.options import Here
from prefect_bt.cli.terminal import OK
from prefect_bt.errors import PrefectBtError
from prefect_bt.fileserver import running
from prefect_bt.fileserver.place import Place, local_root
from prefect_bt.settings import Settings

Say = Callable[[str], None]

_LAST_PORT: Final = 65535


def serve_checkpoints(
    *,
    host: Annotated[str, Parameter(help="Where to listen; 0.0.0.0 for other machines.")] = (
        running.HOST
    ),
    port: Annotated[
        int | None,
        Parameter(
            help="The last one, or any, when left out.", validator=Number(gte=1, lte=_LAST_PORT)
        ),
    ] = None,
    address: Annotated[
        str, Parameter(help="What others call this, as http://box.example:8700.")
    ] = "",
    terminal: Here,
) -> int:
    """Serve the checkpoint files of a store in a local folder, until Ctrl-C.

    `get_checkpoint_urls` starts such a server by itself, for this machine alone. This one can be
    for others: whoever has an address, which is signed and holds for a week, can read that file.

    `prefect-bt checkpoints serve --host 0.0.0.0 --port 8700 --address http://box.example:8700`
    """
    from prefect_bt.fileserver.serving import Files, run

    place = _place()
    if running.is_wildcard(host) and not address:
        raise PrefectBtError(
            f"{host!r} is no name that others could use.",
            next_step="Say what they call this machine: --address http://<name>:<port>.",
        )
    base = _checked(address)
    with running.settle_here(place, host=host, port=port, base=base) as listening:
        known = place.known()
        terminal.say(f"Serving {place.root} at {known.base if known else base}; Ctrl-C ends it.")
        terminal.say("Addresses: prefect-bt get_checkpoint_urls")
        run(Files(place.root, place.secret(), place.id), listening, idle=math.inf)
    return OK


def start_again(*, say: Say) -> None:
    """Let addresses that were given out hold again: the store's server, if it ever had one."""
    root = local_root(_store_url())
    if root is None:
        return
    place = Place.of(root, Settings().state_dir)
    if place.known() is not None:
        known = running.ensure(place, environment=os.environ)
        say(f"Checkpoint files: {known.base}")


def stop_all(*, say: Say) -> None:
    """End every file server of this machine's state folder."""
    for known in running.stop_all(Settings().state_dir):
        say(f"Stopped the file server at {known.base}; `prefect-bt up` starts it again.")


def _place() -> Place:
    root = local_root(_store_url())
    if root is None:
        raise PrefectBtError(
            f"{_store_url()} needs no server: a bucket has addresses of its own.",
            next_step="Use them: prefect-bt get_checkpoint_urls.",
        )
    return Place.of(root, Settings().state_dir)


def _store_url() -> str:
    from prefect_bt.objects import open_store

    return open_store(Settings().store).url


def _checked(address: str) -> str:
    if address and not address.startswith(("http://", "https://")):
        raise PrefectBtError(
            f"--address {address!r} is no address.", next_step="As http://box.example:8700."
        )
    return address.rstrip("/")
