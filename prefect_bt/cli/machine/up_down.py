"""`prefect-bt up` and `prefect-bt down`: a Prefect server and worker on this machine."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import OK


def up(
    *,
    port: Annotated[int | None, Parameter(help="Port of the server; 4200 unless set.")] = None,
    worker: Annotated[
        bool, Parameter(negative="--no-worker", help="Start a worker for deployments too.")
    ] = True,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Start a local Prefect server with its UI, and a worker; pushes then start in a second.

    `prefect-bt up`
    """
    from prefect_bt.cli.checkpoints import serve
    from prefect_bt.local_server import server

    started = server.up(port=port, worker=worker, echo=terminal.echo)
    serve.restart_file_server(echo=terminal.echo)
    if terminal.machine_readable:
        terminal.print_json(started)
    return OK


def down(
    *,
    force: Annotated[bool, Parameter(help="Also while flow runs are going.")] = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Stop the server and worker that `prefect-bt up` started; jobs on this machine go on.

    `prefect-bt down`
    """
    from prefect_bt.cli.checkpoints import serve
    from prefect_bt.local_server import server

    stopped = server.down(force=force, echo=terminal.echo)
    serve.stop_file_servers(echo=terminal.echo)
    if terminal.machine_readable:
        terminal.print_json(stopped)
    return OK
