"""`prefect-bt up` and `prefect-bt down`: a Prefect server and worker on this machine."""

from __future__ import annotations


def up() -> object:
    """Start a local Prefect server with its UI, and a worker; pushes then start in a second."""
    from prefect_bt.cli import server

    return server.up()


def down() -> object:
    """Stop the server and worker that `prefect-bt up` started; jobs that run go on."""
    from prefect_bt.cli import server

    return server.down()
