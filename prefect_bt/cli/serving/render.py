"""Tables of deployments and of their revisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from prefect_bt.cli.ui.tables import (
    Column,
    Document,
    format_local_time,
    format_value,
    list_fields,
    show_fields,
    show_table,
)
from prefect_bt.cli.ui.terminal import Terminal

_STYLES: Final = {"serving": "green", "ready": "cyan", "failed": "red", "stopped": ""}


def format_state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, "yellow"))


def format_checkpoints(checkpoints: Sequence[Sequence[str]]) -> str:
    """Return `job/checkpoint` of each."""
    return format_value(["/".join(one) for one in checkpoints])


_DEPLOYMENTS: Final = [
    Column("Name", "name"),
    Column("Status", "status", format_state),
    Column("Revision", "serving_revision", hide=2),
    Column("Models", "models", wrap=True),
    Column("Address", "address"),
    Column("Created", "created_at", format_local_time, hide=1),
]
_FIELDS: Final = [
    Column("Name", "name"),
    Column("Status", "status", format_state),
    Column("Address", "address"),
    Column("Router", "router"),
    Column("API Key Secret", "api_key_secret"),
    Column("Serving Revision", "serving_revision"),
    Column("Wanted Revision", "wanted_revision"),
    Column("Models", "models"),
    Column("Created", "created_at", format_local_time),
]
_REVISIONS: Final = [
    Column("Revision", "number"),
    Column("State", "state", format_state),
    Column("Engine", "engine", hide=5),
    Column("Type", "kind", hide=6),
    Column("Models", "models", wrap=True),
    Column("Checkpoints", "checkpoints", format_checkpoints, wrap=True, hide=2),
    Column("Base Model", "base_model", wrap=True, hide=3),
    Column("Job ID", "job_id"),
    Column("In Flight", "in_flight", hide=4),
    Column("Created", "at", format_local_time, hide=1),
    Column("Message", "sentence", wrap=True),
]
_PROMOTIONS: Final = [
    Column("Time", "at", format_local_time),
    Column("Revision", "revision", lambda number: str(number or "none")),
    Column("Reason", "why"),
    Column("By", "by", hide=1),
]


def show_deployments(terminal: Terminal, deployments: Sequence[Document]) -> None:
    if deployments:
        show_table(terminal, "Deployments", _DEPLOYMENTS, deployments)
    else:
        terminal.echo("There are no deployments. Create one: prefect-bt deploy_checkpoints")


def show_deployment(terminal: Terminal, deployment: Document) -> None:
    """Print the fields of a deployment, its revisions, its promotions and its curl line."""
    show_fields(terminal, "Deployment", list_fields(_FIELDS, deployment))
    for title, columns, key in (
        ("Revisions", _REVISIONS, "revisions"),
        ("Promotions", _PROMOTIONS, "moves"),
    ):
        if rows := deployment[key]:
            terminal.echo()
            show_table(terminal, title, columns, rows)
    if deployment["curl"]:
        terminal.echo(f"\n{deployment['curl']}")
