"""`prefect-bt costs`: hours and money by project, team or user."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from prefect_bt.cli.ui.options import InjectedTerminal, SinceTime, TableOutput
from prefect_bt.cli.ui.tables import Column, Document, print_csv, show_table
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.projects import DEFAULT_TEAM
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings
from prefect_bt.text.quantities import format_iso

CPU: Final = "CPU"
"""Type of nodes without GPUs; its hours and its price are those of one vCPU."""
Group = Literal["project", "team", "user"]


def costs(
    *,
    by: Group = "project",
    since: SinceTime = None,
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
    jobs, now = StoreJobs(open_ledger(), warn=terminal.warn).open_index(), time.time()
    document = costs_document(
        jobs.list_documents(jobs.list_entries()),
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


@dataclass
class _Usage:
    jobs: int = 0
    node_hours: float = 0.0
    hours: Counter[str] = field(default_factory=Counter[str])
    """Hours by type: of GPUs, and of the vCPUs of nodes without GPUs."""
    kept: float = 0.0
    wall_clock: float = 0.0
    """Seconds of the jobs whose goodput is known."""

    def add(self, job: Document, hours: float) -> None:
        nodes = hours * job["node_count"]
        instance: Document = job["instance_type"]
        planned: Document = job["resources"] or {}
        gpus = planned.get("gpus", instance["gpu_count"])
        name = planned.get("gpu_type") or instance["gpu_type"] or "GPU"
        self.jobs += 1
        self.node_hours += nodes
        self.hours[name if gpus else CPU] += nodes * (gpus or instance["millicpu_limit"] / 1000)
        if goodput := job.get("goodput"):
            self.kept += goodput["seconds"]["training"]
            self.wall_clock += goodput["wall_clock"]

    def document(self, prices: Mapping[str, float]) -> Document:
        hours = {name: round(value, 4) for name, value in sorted(self.hours.items())}
        cost = sum(value * prices.get(name, 0.0) for name, value in self.hours.items())
        return {
            "jobs": self.jobs,
            "node_hours": round(self.node_hours, 4),
            "gpu_hours": {name: value for name, value in hours.items() if name != CPU},
            "cpu_hours": hours.get(CPU, 0.0),
            **({"cost": round(cost, 2)} if prices else {}),
            "kept_fraction": self.kept / self.wall_clock if self.wall_clock else None,
        }


def costs_document(
    jobs: Iterable[Document], *, by: Group, since: float, now: float, prices: Mapping[str, float]
) -> Document:
    """Return the sums of each group and of all jobs between `since` and `now`, JSON-ready.

    Without prices there is no cost. Types without a price are listed as `unpriced`.
    """
    groups, total = defaultdict[str, _Usage](_Usage), _Usage()
    for job in jobs:
        seconds = sum(_attempt_seconds(job, attempt, since, now) for attempt in job["attempts"])
        if seconds > 0:
            for usage in (groups[_group_name(job, by)], total):
                usage.add(job, seconds / 3600)
    return {
        "by": by,
        "since": format_iso(since),
        "until": format_iso(now),
        "groups": [
            {"name": name, **usage.document(prices)} for name, usage in sorted(groups.items())
        ],
        "total": total.document(prices),
        "unpriced": sorted(total.hours.keys() - prices.keys()) if prices else [],
    }


def _group_name(job: Document, by: Group) -> str:
    if by == "user":
        return job.get("user", {}).get("email") or "unknown"
    project = job["training_project"]
    return project["name"] if by == "project" else project["team_name"] or DEFAULT_TEAM


def _attempt_seconds(job: Document, attempt: Document, since: float, now: float) -> float:
    """Return the seconds of an attempt in the window; one without an end ended with its job."""
    start, end = _epoch(attempt["started_at"]), now
    if attempt.get("ended_at"):
        end = _epoch(attempt["ended_at"])
    elif JobState(job["current_status"]).terminal:
        end = _epoch(job["updated_at"])
    return max(0.0, min(now, end) - max(since, start))


def _epoch(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
