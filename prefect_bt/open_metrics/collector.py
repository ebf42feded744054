"""Collect the metrics of this machine's running jobs and of the store, in OpenMetrics' terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
_GPU: Final = (*_NODE, "gpu")
_METRICS: Final[dict[str, tuple[Sequence[str], str]]] = {
    "up": ((), "Whether the store answers: 1 or 0."),
    "store_errors_total": ((), "Reads of the store that failed."),
    "queue_jobs": ((), "Jobs that wait in the queue."),
    "jobs": (("state",), "Jobs that have not ended."),
    "goodput_ratio": (_JOB, "Part of the job's time that was training and kept."),
    "training_loss": (_JOB, "Last loss that the trainer reported."),
    "training_learning_rate": (_JOB, "Last learning rate that the trainer reported."),
    "training_step": (_JOB, "Last step that the trainer reported."),
    "node_cpu_usage_cores": (_NODE, "CPU cores in use."),
    "node_cpu_limit_cores": (_NODE, "CPU cores of the node."),
    "node_memory_used_bytes": (_NODE, "Memory in use."),
    "node_memory_available_bytes": (_NODE, "Memory that the node can still use."),
    "node_disk_used_bytes": (_NODE, "Scratch disk in use."),
    "node_disk_size_bytes": (_NODE, "Size of the scratch disk."),
    "node_network_received_bytes_per_second": (_NODE, "Received from the network."),
    "node_network_sent_bytes_per_second": (_NODE, "Sent to the network."),
    "node_disk_read_bytes_per_second": (_NODE, "Read from disks."),
    "node_disk_written_bytes_per_second": (_NODE, "Written to disks."),
    "gpu_utilization_ratio": (_GPU, "Part of the time in which a kernel ran."),
    "gpu_memory_used_bytes": (_GPU, "Memory of the GPU in use."),
    "gpu_memory_size_bytes": (_GPU, "Memory of the GPU."),
    "gpu_temperature_celsius": (_GPU, "Temperature of the GPU."),
    "gpu_power_watts": (_GPU, "Power that the GPU draws."),
    "gpu_ecc_errors_total": (_GPU, "Uncorrected ECC errors of the GPU."),
}
"""Labels and help of each metric, without its prefix."""
_COLUMNS: Final = {
    "cpu": "node_cpu_usage_cores",
    "memory": "node_memory_used_bytes",
    "memory_available": "node_memory_available_bytes",
    "disk": "node_disk_used_bytes",
    "disk_total": "node_disk_size_bytes",
    "received": "node_network_received_bytes_per_second",
    "sent": "node_network_sent_bytes_per_second",
    "read": "node_disk_read_bytes_per_second",
    "written": "node_disk_written_bytes_per_second",
}
_GPU_COLUMNS: Final = {
    "utilization": "gpu_utilization_ratio",
    "memory": "gpu_memory_used_bytes",
    "temperature": "gpu_temperature_celsius",
    "power": "gpu_power_watts",
    "ecc_errors": "gpu_ecc_errors_total",
}
_Value = tuple[str, Sequence[str], float | None]
"""Metric, values of its labels, and its value."""


class JobCollector(Collector):
    """Collects anew at each scrape: nodes from their files, the store as it answered last."""

    def __init__(self, state_dir: Path, store: StoreReader) -> None:
        self._nodes, self._store = RunningNodes(state_dir), store

    def describe(self) -> list[Metric]:
        """Return nothing: a registration reads no job."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; those of nodes and of training only for jobs that run here."""
        families = dict[str, GaugeMetricFamily | CounterMetricFamily]()
        for name, (labels, text) in _METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = kind(f"prefect_bt_{name}", text, labels=labels)
        for name, labels, value in self._read():
            if value is not None and not math.isnan(value):
                families[name].add_metric(labels, value)
        yield from families.values()

    def _read(self) -> Iterator[_Value]:
        nodes = list(self._nodes.read())
        jobs = {node.job_id: node.labels[: len(_JOB)] for node in nodes}
        store = self._store
        store.refresh(jobs)
        yield "up", (), int(store.is_up)
        yield "store_errors_total", (), store.errors
        if store.is_up and (values := store.values) is not None:
            yield "queue_jobs", (), values.queued
            yield from (("jobs", (state,), count) for state, count in values.states.items())
            for job_id in jobs.keys() & values.kept.keys():
                yield "goodput_ratio", jobs[job_id], values.kept[job_id]
        for node in nodes:
            yield from _read_node(node)
        for job_id, labels in jobs.items():
            yield from _read_training([node for node in nodes if node.job_id == job_id], labels)


def _read_node(node: RunningNode) -> Iterator[_Value]:
    metrics, facts = node.metrics, node.metrics.facts
    yield "node_cpu_limit_cores", node.labels, facts.cpus
    for column, name in _COLUMNS.items():
        yield name, node.labels, metrics.last(column)
    for gpu in facts.gpus:
        labels = (*node.labels, str(gpu.index))
        yield "gpu_memory_size_bytes", labels, gpu.memory_total
        for column, name in _GPU_COLUMNS.items():
            yield name, labels, metrics.last(f"gpu{gpu.index}_{column}")


def _read_training(nodes: Sequence[RunningNode], labels: Sequence[str]) -> Iterator[_Value]:
    """Yield what the first rank on this machine that reports something reports."""
    node = next((node for node in nodes if node.training or node.step is not None), None)
    if node is None:
        return
    yield "training_step", labels, node.step
    for name, pattern in (("training_loss", LOSS), ("training_learning_rate", LEARNING_RATE)):
        if reported := find_name(node.training, pattern):
            yield name, labels, node.training[reported]
