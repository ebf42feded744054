"""`prefect-bt costs`: hours and money by project, team or user."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

from prefect_bt.cli.jobs.selection import list_entries, open_job_index
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, TableOutput
from prefect_bt.cli.ui.tables import Column, Document, print_csv, show_table
from prefect_bt.job_metrics.costs import Group, costs_document
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_since


def _convert_since(_: object, tokens: Sequence[Token]) -> float:
    return parse_since(tokens[0].value, now=time.time()) / 1e9


def costs(
    *,
    by: Group = "project",
    since: Annotated[float | None, Parameter(converter=_convert_since, metavar="TIME")] = None,
    output: TableOutput = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Sum the hours of jobs and their cost, by project, team or user.

    An attempt counts from its start to its end, or until now. PREFECT_BT_PRICES has the prices of
    an hour, such as `H100=2.50,CPU=0.04`: of a GPU, and of a vCPU of nodes without GPUs.

    Args:
        by: Sum by project, team or user.
        since: Only the time since this age or date: `30d`, `12h`, `2w`, or ISO 8601; UTC without a
            zone; default: 30d.

    Examples:

    `prefect-bt costs`

    `prefect-bt costs --by user --since 2026-11-01 -o csv`
    """
    jobs, now = open_job_index(open_ledger(), terminal), time.time()
    document = costs_document(
        jobs.list_documents(list_entries(jobs, NO_FILTER, terminal)),
        by=by,
        since=now - 30 * 86400 if since is None else since,
        now=now,
        prices=Settings().prices,
    )
    columns, rows = _list_columns(document), document["groups"]
    total = {"name": "Total", **document["total"]}
    if terminal.output == "csv":
        print_csv(columns, [*rows, total])
    elif terminal.output == "json":
        terminal.print_json(document)
    elif rows:
        show_table(terminal, "Costs", columns, [*rows, total])
    else:
        terminal.echo(f"No job ran since {document['since']}.")
    if document["unpriced"]:
        missing = ", ".join(f"{name}=…" for name in document["unpriced"])
        terminal.warn(
            f"The cost is incomplete. Add the missing prices to PREFECT_BT_PRICES: {missing}"
        )
    return 0


def _list_columns(document: Document) -> list[Column]:
    """Return the columns of the types and of the values that the document has."""
    total = document["total"]
    numbers = {
        "Node Hours": "node_hours",
        **{f"{name} Hours": f"gpu_hours.{name}" for name in total["gpu_hours"]},
        **({"vCPU Hours": "cpu_hours"} if total["cpu_hours"] else {}),
        **({"Cost": "cost"} if "cost" in total else {}),
    }
    return [
        Column(document["by"].title(), "name", wrap=True),
        Column("Jobs", "jobs"),
        *(Column(name, key, lambda value: f"{value or 0:,.2f}") for name, key in numbers.items()),
        Column(
            "Kept", "kept_fraction", lambda value: "" if value is None else f"{100 * value:.0f} %"
        ),
    ]
