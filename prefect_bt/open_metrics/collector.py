"""Collect the metrics of this machine's running jobs and of the store, in OpenMetrics' terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from prefect_bt.job_metrics.series import LEARNING_RATE, LOSS, find_name
from prefect_bt.open_metrics.node_values import RunningNode, RunningNodes
from prefect_bt.open_metrics.store_values import StoreReader

_JOB: Final = ("job_id", "project", "name")  # `job` is a label of Prometheus itself
_NODE: Final = (*_JOB, "rank", "attempt")
_NODE_COLUMNS: Final = {
    "cpu": ("prefect_bt_node_cpu_usage", "cores", "CPU cores in use."),
    "memory": ("prefect_bt_node_memory_used", "bytes", "Memory in use."),
    "memory_available": (
        "prefect_bt_node_memory_available",
        "bytes",
        "Memory that the node can still use.",
    ),
    "disk": ("prefect_bt_node_disk_used", "bytes", "Scratch disk in use."),
    "disk_total": ("prefect_bt_node_disk_size", "bytes", "Size of the scratch disk."),
    "received": ("prefect_bt_node_network_received", "bytes_per_second", "Network, received."),
    "sent": ("prefect_bt_node_network_sent", "bytes_per_second", "Network, sent."),
    "read": ("prefect_bt_node_disk_read", "bytes_per_second", "Read from disks."),
    "written": ("prefect_bt_node_disk_written", "bytes_per_second", "Written to disks."),
}
_GPU_COLUMNS: Final = {
    "utilization": ("prefect_bt_gpu_utilization", "ratio", "Time in which a kernel ran."),
    "memory": ("prefect_bt_gpu_memory_used", "bytes", "Memory of the GPU in use."),
    "temperature": ("prefect_bt_gpu_temperature", "celsius", "Temperature of the GPU."),
    "power": ("prefect_bt_gpu_power", "watts", "Power that the GPU draws."),
}


class JobCollector(Collector):
    """Collects anew at each scrape: nodes from their files, the store as it answered last."""

    def __init__(self, state_dir: Path, store: StoreReader) -> None:
        self._nodes, self._store = RunningNodes(state_dir), store

    def describe(self) -> list[Metric]:
        """Return nothing: a registration reads no job."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; those of nodes and of training only for jobs that run here."""
        nodes = list(self._nodes.read())
        jobs = {node.labels[0]: node.labels[: len(_JOB)] for node in nodes}
        self._store.refresh(jobs)
        yield from _collect_store(self._store, jobs)
        yield from _collect_nodes(nodes)
        yield from _collect_gpus(nodes)
        yield from _collect_training(nodes)


def _collect_store(store: StoreReader, labels: Mapping[str, Sequence[str]]) -> Iterator[Metric]:
    up = GaugeMetricFamily("prefect_bt_up", "Whether the store answers: 1 or 0.")
    up.add_metric((), int(store.is_up))
    yield up
    errors = CounterMetricFamily("prefect_bt_store_errors", "Reads of the store that failed.")
    errors.add_metric((), store.errors)
    yield errors
    if store.is_up and (values := store.values) is not None:
        queued = GaugeMetricFamily("prefect_bt_queue_jobs", "Jobs that wait in the queue.")
        queued.add_metric((), values.queued)
        yield queued
        jobs = GaugeMetricFamily("prefect_bt_jobs", "Jobs that have not ended.", labels=["state"])
        for state, count in values.states.items():
            jobs.add_metric([state], count)
        yield jobs
        kept = GaugeMetricFamily(
            "prefect_bt_goodput_ratio",
            "Part of the job's time that was training and kept.",
            labels=_JOB,
            unit="ratio",
        )
        for job_id, part in values.kept.items():
            if job_id in labels:
                kept.add_metric(labels[job_id], part)
        yield kept


def _collect_nodes(nodes: Sequence[RunningNode]) -> Iterator[Metric]:
    for column, (name, unit, text) in _NODE_COLUMNS.items():
        gauge = GaugeMetricFamily(f"{name}_{unit}", text, labels=_NODE, unit=unit)
        for node in nodes:
            if (value := node.metrics.last(column)) is not None:
                gauge.add_metric(node.labels, value)
        yield gauge
    limits = GaugeMetricFamily(
        "prefect_bt_node_cpu_limit_cores", "CPU cores of the node.", labels=_NODE, unit="cores"
    )
    for node in nodes:
        limits.add_metric(node.labels, node.metrics.facts.cpus)
    yield limits


def _collect_gpus(nodes: Sequence[RunningNode]) -> Iterator[Metric]:
    labels = (*_NODE, "gpu")
    families = [
        (column, GaugeMetricFamily(f"{name}_{unit}", text, labels=labels, unit=unit))
        for column, (name, unit, text) in _GPU_COLUMNS.items()
    ]
    errors = CounterMetricFamily(
        "prefect_bt_gpu_ecc_errors", "Uncorrected ECC errors of the GPU.", labels=labels
    )
    for column, family in [*families, ("ecc_errors", errors)]:
        for node in nodes:
            for index, values in node.metrics.gpu_columns(column).items():
                if values and values[-1] == values[-1]:
                    family.add_metric([*node.labels, index], values[-1])
        yield family
    size = GaugeMetricFamily(
        "prefect_bt_gpu_memory_size_bytes", "Memory of the GPU.", labels=labels, unit="bytes"
    )
    for node in nodes:
        for gpu in node.metrics.facts.gpus:
            size.add_metric([*node.labels, str(gpu.index)], gpu.memory_total)
    yield size


def _collect_training(nodes: Sequence[RunningNode]) -> Iterator[Metric]:
    """Yield the values of the first rank on this machine that reports them."""
    loss, rate, step = (
        GaugeMetricFamily(f"prefect_bt_training_{name}", text, labels=_JOB)
        for name, text in (
            ("loss", "Last loss that the trainer reported."),
            ("learning_rate", "Last learning rate that the trainer reported."),
            ("step", "Last step that the trainer reported."),
        )
    )
    reported = set[tuple[str, int]]()
    for node in sorted(nodes, key=lambda node: (-int(node.labels[4]), int(node.labels[3]))):
        names = find_name(node.training, LOSS), find_name(node.training, LEARNING_RATE)
        values = [node.training[name] if name else None for name in names]
        for family, value in zip((loss, rate, step), (*values, node.step), strict=True):
            if value is not None and (node.labels[0], id(family)) not in reported:
                reported.add((node.labels[0], id(family)))
                family.add_metric(node.labels[:3], value)
    yield from (loss, rate, step)
