"""Hours and money of many jobs, summed from their documents (jobs/job_json.py). Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from prefect_bt.ledger.projects import DEFAULT_TEAM
from prefect_bt.ledger.states import JobState
from prefect_bt.text.quantities import format_iso

CPU: Final = "CPU"
"""Type of nodes without GPUs; its hours and its price are those of one vCPU."""
Group = Literal["project", "team", "user"]
Document = dict[str, Any]


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
