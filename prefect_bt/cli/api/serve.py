"""`prefect-bt api`: serve the HTTP API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import UsageError


def serve_api(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=1, lte=65535))] = 8000,
    certificate: Path | None = None,
    private_key: Path | None = None,
    terminal: InjectedTerminal,
) -> int:
    """Serve the Training API for `truss`, `prefect-bt --remote` and other programs until Ctrl-C.

    It has the routes of Baseten Training, for the store of this machine. Every request needs a key:
    `prefect-bt api-key create`. Jobs that are pushed to it start on this machine, or wait in the
    queue. `prefect-bt up --api` runs it in the background.

    Args:
        host: Address to listen on; 0.0.0.0 for other machines.
        port: Port. `truss` alone finds a server at 8000 only.
        certificate: PEM file with the server's certificate; the server then speaks HTTPS.
        private_key: PEM file with the key of the certificate.

    Examples:

    `prefect-bt api`

    `prefect-bt api --host 0.0.0.0 --certificate box.pem --private-key box-key.pem`
    """
    if private_key and not certificate:
        raise UsageError("--private-key needs --certificate.", next_step="Give both.")
    from prefect_bt.http_api.server import Listen, serve

    serve(Listen(host, port, certificate, private_key), echo=terminal.echo)
    return OK
