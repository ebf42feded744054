"""How deployments look: tables as elsewhere. Times are local."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from prefect_bt.cli.tables import (
    Cell,
    Column,
    Document,
    local_time,
    number,
    show_fields,
    show_table,
)
from prefect_bt.cli.terminal import Terminal

_STYLES = {"serving": "green", "ready": "cyan", "failed": "red", "stopped": ""}


def show_deployments(terminal: Terminal, deployments: Sequence[Document]) -> None:
    if not deployments:
        terminal.say("No deployments yet. Start one: prefect-bt deploy_checkpoints")
        return
    columns = [
        Column("Name", lambda d: d["name"]),
        Column("Status", lambda d: _state(d["status"])),
        Column("Revision", lambda d: number(d["serving_revision"])),
        Column("Models", lambda d: ", ".join(d["models"])),
        Column("Address", lambda d: d["address"] or ""),
        Column("Created", lambda d: local_time(d["created_at"]), solid=True),
    ]
    show_table(terminal, "Deployments", columns, deployments, spare=["Created", "Revision"])


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
        ("Serving Revision", number(serving) or "none"),
        ("Wanted Revision", number(wanted) if wanted != serving else None),
        ("Models", ", ".join(deployment["models"]) or None),
        ("Created", local_time(deployment["created_at"])),
    ]
    show_fields(terminal, f"Deployment: {deployment['name']}", fields)
    if deployment["revisions"]:
        terminal.say()
        show_table(
            terminal, "Revisions", _REVISION, deployment["revisions"], spare=_SPARE_OF_REVISIONS
        )
    if deployment["moves"]:
        terminal.say()
        show_table(terminal, "To Serve", _MOVE, deployment["moves"], spare=["By"])
    if deployment["curl"]:
        terminal.say()
        terminal.say(deployment["curl"])


_REVISION = [
    Column("Revision", lambda r: str(r["number"])),
    Column("State", lambda r: _state(r["state"])),
    Column("Engine", lambda r: r["engine"]),
    Column("Type", lambda r: r["kind"]),
    Column("Models", lambda r: ", ".join(r["models"])),
    Column("Checkpoints", lambda r: ", ".join("/".join(one) for one in r["checkpoints"])),
    Column("Base Model", lambda r: r["base_model"]),
    Column("Job ID", lambda r: r["job_id"] or ""),
    Column("In Flight", lambda r: str(r["in_flight"])),
    Column("Created", lambda r: local_time(r["at"]), solid=True),
    Column("Message", lambda r: r["sentence"] or "", least=30),
]
_SPARE_OF_REVISIONS = ["Created", "Checkpoints", "Base Model", "In Flight", "Engine", "Type"]
_MOVE = [
    Column("When", lambda m: local_time(m["at"]), solid=True),
    Column("Revision", lambda m: number(m["revision"] or None) or "none"),
    Column("Why", lambda m: m["why"]),
    Column("By", lambda m: m["by"]),
]


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, "yellow"))
