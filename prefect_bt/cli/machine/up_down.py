"""`prefect-bt up` and `prefect-bt down`: a Prefect server and worker on this machine."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, MetricsListen, Output
from prefect_bt.file_server import process
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.local_server import server
from prefect_bt.settings import Settings


def up(
    *,
    port: int | None = None,
    worker: Annotated[bool, Parameter(negative="--no-worker")] = True,
    metrics_listen: MetricsListen = None,
    api: bool = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Make pushes start within a second, and show jobs in the Prefect UI.

    The command prints the address of the UI and how to sign in. `prefect-bt down` stops it all.

    Args:
        port: Port of the server; default: 4200.
        worker: Start a worker for deployments as well.
        api: Serve the Training API too, at 127.0.0.1:8000, for `truss` and other clients.

    Examples:

    `prefect-bt up`
    """
    settings = Settings()
    listen = metrics_listen or settings.metrics_listen
    started = server.up(
        port=port, worker=worker, metrics_listen=listen, api=api, echo=terminal.echo
    )
    store_url = open_settings_store(settings).url
    if known := process.restart_server(store_url, settings.state_dir, os.environ):
        terminal.echo(f"Checkpoint files: {known.base}")
    return terminal.print_result(started, lambda: None)


def down(*, force: bool = False, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """Stop the server, worker and file servers that `prefect-bt up` started.

    Jobs on this machine continue.

    Args:
        force: Stop the server even while flow runs use it.

    Examples:

    `prefect-bt down`
    """
    stopped = server.down(force=force, echo=terminal.echo)
    for known in process.stop_all_servers(Settings().state_dir):
        terminal.echo(f"Stopped the file server at {known.base}; `prefect-bt up` starts it again.")
    return terminal.print_result(stopped, lambda: None)
