"""The JSON document of a job's metrics, and its samples as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from prefect_bt.job_metrics.job_metrics import JobMetrics
from prefect_bt.job_metrics.node_metrics import NodeMetrics, column_units
from prefect_bt.job_metrics.series import (
    Sample,
    Window,
    choose_window,
    group_by_rank,
    join_column,
    join_training,
)
from prefect_bt.text.quantities import format_iso
from prefect_bt.training_cache.usage import CacheSummary


def metrics_document(
    metrics: JobMetrics,
    *,
    window: Window | None = None,
    training_job: dict[str, Any] | None = None,
    cache: CacheSummary | None = None,
) -> dict[str, Any]:
    """Return the JSON-ready document; the values outside `per_node_metrics` are the leader's.

    `training_job`: the document of the job. `cache`: the newest snapshot of its training cache.
    """
    window = window or choose_window(metrics)
    nodes = {rank: _node_document(group, window) for rank, group in group_by_rank(metrics).items()}
    return {
        **nodes.get(0, _node_document((), window)),
        "cache": _cache_document(cache) if cache else None,
        "per_node_metrics": [
            {"node_id": str(rank), "metrics": document} for rank, document in nodes.items()
        ],
        "training_job": training_job,
        "training": {
            name: [
                {"value": value, "step": step, "timestamp": format_iso(at)}
                for at, value, step, _ in window.cut(samples)
            ]
            for name, samples in join_training(metrics).items()
        },
    }


def list_rows(metrics: JobMetrics, *, since: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield every sample of every series; those of the training have no rank."""
    window = choose_window(metrics, since=since)
    series: list[tuple[int | None, str, Iterable[Sample]]] = [
        (rank, column, join_column(nodes, column))
        for rank, nodes in group_by_rank(metrics).items()
        for column in dict.fromkeys(name for node in nodes for name in column_units(node.facts))
    ]
    series += [(None, name, samples) for name, samples in join_training(metrics).items()]
    for rank, name, samples in series:
        for at, value, step, attempt in window.cut(samples, limit=None):
            yield {
                "timestamp": format_iso(at),
                "attempt": attempt,
                "rank": rank,
                "series": name,
                "step": step,
                "value": value if rank is None else round(value, 4),
            }


def _node_document(nodes: Sequence[NodeMetrics], window: Window) -> dict[str, Any]:
    def cut(samples: Iterable[Sample]) -> list[dict[str, Any]]:
        return [
            {"value": round(value, 4), "timestamp": format_iso(at)}
            for at, value, *_ in window.cut(samples)
        ]

    def gpus(name: str) -> dict[str, list[dict[str, Any]]]:
        indices = sorted({gpu.index for node in nodes for gpu in node.facts.gpus})
        return {str(i): cut(join_column(nodes, f"gpu{i}_{name}")) for i in indices}

    disk = list(join_column(nodes, "disk"))
    sizes = join_column(nodes, "disk_total")
    return {
        "gpu_memory_usage_bytes": gpus("memory"),
        "gpu_utilization": gpus("utilization"),
        "cpu_usage": cut(join_column(nodes, "cpu")),
        "cpu_memory_usage_bytes": cut(join_column(nodes, "memory")),
        "ephemeral_storage": {
            "usage_bytes": cut(disk),
            "utilization": cut(
                Sample(used.at, used.value / size.value)
                for used, size in zip(disk, sizes, strict=True)
                if size.value
            ),
        },
    }


def _cache_document(cache: CacheSummary) -> dict[str, Any]:
    """Return the usage of the cache; the size of its disk is not known."""
    at = datetime.fromisoformat(cache.timestamp).timestamp()
    usage = {"value": cache.total_size, "timestamp": format_iso(at)}
    return {"usage_bytes": [usage], "utilization": []}
