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
    window: Window | None = None,
    *,
    training_job: dict[str, Any] | None = None,
    cache: CacheSummary | None = None,
) -> dict[str, Any]:
    """Return the JSON-ready document; the values outside `per_node_metrics` are the leader's.

    `training_job`: the document of the job. `cache`: the newest snapshot of its training cache.
    """
    window = window or choose_window(metrics)
    ranks = group_by_rank(metrics)
    return {
        **_node_document(ranks.get(0, ()), window),
        "cache": _cache_document(cache),
        "per_node_metrics": [
            {"node_id": str(rank), "metrics": _node_document(nodes, window)}
            for rank, nodes in ranks.items()
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


def list_rows(metrics: JobMetrics, window: Window | None = None) -> Iterator[dict[str, Any]]:
    """Yield every series of every rank: timestamp, attempt, rank, series, step and value."""
    window = window or choose_window(metrics)
    ranks = group_by_rank(metrics)
    for rank, nodes in ranks.items():
        for column in dict.fromkeys(name for node in nodes for name in column_units(node.facts)):
            for sample in window.cut(join_column(nodes, column)):
                yield _row(sample, rank, column)
    for name, samples in join_training(metrics).items():
        for sample in window.cut(samples):
            yield _row(sample, None, name)


def _row(sample: Sample, rank: int | None, series: str) -> dict[str, Any]:
    return {
        "timestamp": format_iso(sample.at),
        "attempt": sample.attempt,
        "rank": rank,
        "series": series,
        "step": sample.step,
        "value": sample.value if rank is None else round(sample.value, 4),
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

    used, total = join_column(nodes, "disk"), join_column(nodes, "disk_total")
    return {
        "gpu_memory_usage_bytes": gpus("memory"),
        "gpu_utilization": gpus("utilization"),
        "cpu_usage": cut(join_column(nodes, "cpu")),
        "cpu_memory_usage_bytes": cut(join_column(nodes, "memory")),
        "ephemeral_storage": {
            "usage_bytes": cut(join_column(nodes, "disk")),
            "utilization": cut(
                Sample(a.at, a.value / b.value) for a, b in zip(used, total, strict=True) if b.value
            ),
        },
    }


def _cache_document(cache: CacheSummary | None) -> dict[str, Any] | None:
    """Return the usage of the cache; the size of its disk is not known."""
    if cache is None:
        return None
    at = datetime.fromisoformat(cache.timestamp).timestamp()
    usage = {"value": cache.total_size, "timestamp": format_iso(at)}
    return {"usage_bytes": [usage], "utilization": []}
