"""How deployments look: tables as elsewhere. Times are local."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from prefect_bt.cli.ui.tables import (
    Cell,
    Column,
    Document,
    format_local_time,
    format_number,
    show_fields,
    show_table,
)
from prefect_bt.cli.ui.terminal import Terminal

_STYLES = {"serving": "green", "ready": "cyan", "failed": "red", "stopped": ""}


def show_deployments(terminal: Terminal, deployments: Sequence[Document]) -> None:
    if not deployments:
        terminal.echo("No deployments yet. Start one: prefect-bt deploy_checkpoints")
        return
    columns = [
        Column("Name", lambda d: d["name"]),
        Column("Status", lambda d: _state(d["status"])),
        Column("Revision", lambda d: format_number(d["serving_revision"])),
        Column("Models", lambda d: ", ".join(d["models"])),
        Column("Address", lambda d: d["address"] or ""),
        Column("Created", lambda d: format_local_time(d["created_at"]), no_wrap=True),
    ]
    show_table(terminal, "Deployments", columns, deployments, optional=["Created", "Revision"])


def show_deployment(terminal: Terminal, deployment: Document) -> None:
    """Field by field, then its revisions and which of them was to serve when."""
    wanted, serving = deployment["wanted_revision"], deployment["serving_revision"]
    key = deployment["api_key_secret"]
    fields: list[tuple[str, Cell | None]] = [
        ("Name", deployment["name"]),
        ("Status", _state(deployment["status"])),
        ("Address", deployment["address"]),
        ("Router", deployment["router"]),
        ("API Key", f"secret {key}" if key else None),
        ("Serving Revision", format_number(serving) or "none"),
        ("Wanted Revision", format_number(wanted) if wanted != serving else None),
        ("Models", ", ".join(deployment["models"]) or None),
        ("Created", format_local_time(deployment["created_at"])),
    ]
    show_fields(terminal, f"Deployment: {deployment['name']}", fields)
    if deployment["revisions"]:
        terminal.echo()
        show_table(
            terminal,
            "Revisions",
            _REVISION_COLUMNS,
            deployment["revisions"],
            optional=_OPTIONAL_REVISION_COLUMNS,
        )
    if deployment["moves"]:
        terminal.echo()
        show_table(
            terminal, "To Serve", _DESIRED_REVISION_COLUMNS, deployment["moves"], optional=["By"]
        )
    if deployment["curl"]:
        terminal.echo()
        terminal.echo(deployment["curl"])


_REVISION_COLUMNS = [
    Column("Revision", lambda r: str(r["number"])),
    Column("State", lambda r: _state(r["state"])),
    Column("Engine", lambda r: r["engine"]),
    Column("Type", lambda r: r["kind"]),
    Column("Models", lambda r: ", ".join(r["models"])),
    Column("Checkpoints", lambda r: ", ".join("/".join(one) for one in r["checkpoints"])),
    Column("Base Model", lambda r: r["base_model"]),
    Column("Job ID", lambda r: r["job_id"] or ""),
    Column("In Flight", lambda r: str(r["in_flight"])),
    Column("Created", lambda r: format_local_time(r["at"]), no_wrap=True),
    Column("Message", lambda r: r["sentence"] or "", min_width=30),
]
_OPTIONAL_REVISION_COLUMNS = ["Created", "Checkpoints", "Base Model", "In Flight", "Engine", "Type"]
_DESIRED_REVISION_COLUMNS = [
    Column("When", lambda m: format_local_time(m["at"]), no_wrap=True),
    Column("Revision", lambda m: format_number(m["revision"] or None) or "none"),
    Column("Why", lambda m: m["why"]),
    Column("By", lambda m: m["by"]),
]


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, "yellow"))
