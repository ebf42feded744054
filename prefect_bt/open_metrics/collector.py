"""Collect the metrics of this machine's running jobs and of the store, in OpenMetrics' terms."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from prefect_bt import codec
from prefect_bt.filesystem.confined import open_regular
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.host.job_lock import is_free
from prefect_bt.host.state_folder import NodeFolder
from prefect_bt.job_metrics.node_metrics import MetricsDecoder, NodeMetrics, TrainingPoint
from prefect_bt.job_metrics.series import LEARNING_RATE, LOSS, find_name
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.open_metrics.store_values import StoreReader
from prefect_bt.planning.plan import NodePlan

MAX_READ_BYTES: Final = 1 << 19
"""Bytes of a node's file that one scrape decodes. A file that was long before takes several."""
_MAX_POINTS: Final = 1000
"""Reports of a trainer in which the last value of each series is looked for."""
_JOB: Final = ("job_id", "project", "name")  # `job` is a label of Prometheus itself
_NODE: Final = (*_JOB, "rank", "attempt")
_GPU: Final = (*_NODE, "gpu")
_METRICS: Final[Mapping[str, tuple[Sequence[str], str, str]]] = {
    "up": ((), "", "Whether the store answers: 1 or 0."),
    "store_errors_total": ((), "", "Reads of the store that failed."),
    "queue_jobs": ((), "", "Jobs that wait in the queue."),
    "jobs": (("state",), "", "Jobs that have not ended."),
    "goodput_ratio": (_JOB, "", "Part of the job's time that was training and kept."),
    "training_loss": (_JOB, "", "Last loss that the trainer reported."),
    "training_learning_rate": (_JOB, "", "Last learning rate that the trainer reported."),
    "training_step": (_JOB, "", "Last step that the trainer reported."),
    "node_cpu_limit_cores": (_NODE, "", "CPU cores of the node."),
    "node_cpu_usage_cores": (_NODE, "cpu", "CPU cores in use."),
    "node_memory_used_bytes": (_NODE, "memory", "Memory in use."),
    "node_memory_available_bytes": (
        _NODE,
        "memory_available",
        "Memory that is still free.",
    ),
    "node_disk_used_bytes": (_NODE, "disk", "Scratch disk in use."),
    "node_disk_size_bytes": (_NODE, "disk_total", "Size of the scratch disk."),
    "node_network_received_bytes_per_second": (_NODE, "received", "Received from the network."),
    "node_network_sent_bytes_per_second": (_NODE, "sent", "Sent to the network."),
    "node_disk_read_bytes_per_second": (_NODE, "read", "Read from disks."),
    "node_disk_written_bytes_per_second": (_NODE, "written", "Written to disks."),
    "gpu_memory_size_bytes": (_GPU, "", "Memory of the GPU."),
    "gpu_utilization_ratio": (_GPU, "utilization", "Part of the time in which a kernel ran."),
    "gpu_memory_used_bytes": (_GPU, "memory", "Memory of the GPU in use."),
    "gpu_temperature_celsius": (_GPU, "temperature", "Temperature of the GPU."),
    "gpu_power_watts": (_GPU, "power", "Power that the GPU draws."),
    "gpu_ecc_errors_total": (_GPU, "ecc_errors", "Uncorrected ECC errors of the GPU."),
}
"""Labels, column of the node or of the GPU, and help of each metric, without its prefix."""
_Value = tuple[str, Sequence[str], float | None]
"""Metric, values of its labels, and its value."""


@dataclass
class _RunningNode:
    """A node that runs on this machine. `labels`: values of _NODE."""

    path: Path
    labels: tuple[str, ...]
    decoder: MetricsDecoder

    @property
    def metrics(self) -> NodeMetrics:
        """The newest sample, and the newest reports of the trainer."""
        return self.decoder.node

    def read_new(self) -> bool:
        """Decode what was appended; return whether the end of the file is reached. OSError."""
        with os.fdopen(open_regular(str(self.path)), "rb") as file:
            file.seek(self.decoder.offset)
            data = file.read(MAX_READ_BYTES)
        self.decoder.feed(data)
        self.metrics.keep_since(max(self.metrics.times, default=0.0), points=_MAX_POINTS)
        return len(data) < MAX_READ_BYTES


class JobCollector(Collector):
    """Collects at each scrape: nodes from their files, the store as it answered last."""

    def __init__(self, state_dir: Path, store: StoreReader) -> None:
        self._state_dir, self._store = state_dir, store
        self._nodes = dict[Path, _RunningNode]()
        self._lock = threading.Lock()
        """Held by a scrape: each has a thread of its own."""

    def describe(self) -> list[Metric]:
        """Return nothing: a registration reads no job."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; those of nodes and of training only for jobs that run here."""
        families = dict[str, GaugeMetricFamily | CounterMetricFamily]()
        for name, (labels, _, text) in _METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = kind(f"prefect_bt_{name}", text, labels=labels)
        with self._lock:
            for name, labels, value in self._read():
                if value is not None and not math.isnan(value):
                    families[name].add_metric(labels, value)
        yield from families.values()

    def _read(self) -> Iterator[_Value]:
        nodes = list(self._read_nodes())
        jobs = dict[tuple[str, ...], list[NodeMetrics]]()
        for node in nodes:
            jobs.setdefault(node.labels[: len(_JOB)], []).append(node.metrics)
        store = self._store
        store.refresh([job_id for job_id, *_ in jobs])
        yield "up", (), int(store.is_up)
        yield "store_errors_total", (), store.errors
        if store.is_up:
            yield "queue_jobs", (), store.queued
            yield from (("jobs", (state,), count) for state, count in store.states.items())
            yield from (("goodput_ratio", labels, store.kept.get(labels[0])) for labels in jobs)
        for node in nodes:
            yield from _read_node(node)
        for labels, ranks in jobs.items():
            yield from _read_training(ranks, labels)

    def _read_nodes(self) -> Iterator[_RunningNode]:
        """Yield each running node whose file was read to its end."""
        running = [
            path
            for path in find_paths(self._state_dir / "jobs", "*/attempt-*/rank-*")
            if not is_free(path / "lock")
        ]
        self._nodes = {path: node for path, node in self._nodes.items() if path in running}
        for path in running:
            if path not in self._nodes:
                with suppress(OSError, *DAMAGED):  # it just begins, or is of another release
                    self._nodes[path] = _open_node(NodeFolder(path))
        for node in self._nodes.values():
            with suppress(OSError):  # it ends
                if node.read_new():
                    yield node


def _open_node(folder: NodeFolder) -> _RunningNode:
    plan = codec.loads(NodePlan, folder.plan.read_bytes())
    project = plan.environment.get("BT_TRAINING_PROJECT_NAME", plan.project_id)
    name = plan.environment.get("BT_TRAINING_JOB_NAME", "")
    labels = (plan.job_id, project, name, str(plan.rank), str(plan.attempt))
    decoder = MetricsDecoder(NodeMetrics(plan.attempt, plan.rank))
    return _RunningNode(folder.metrics, labels, decoder)


def _read_node(node: _RunningNode) -> Iterator[_Value]:
    metrics, facts = node.metrics, node.metrics.facts
    gpus = {gpu.index: (*node.labels, str(gpu.index)) for gpu in facts.gpus}
    yield "node_cpu_limit_cores", node.labels, facts.cpus
    for gpu in facts.gpus:
        yield "gpu_memory_size_bytes", gpus[gpu.index], gpu.memory_total
    for name, (labels, column, _) in _METRICS.items():
        if column and labels is _NODE:
            yield name, node.labels, metrics.last(column)
        elif column:
            for index, gpu_labels in gpus.items():
                yield name, gpu_labels, metrics.last(f"gpu{index}_{column}")


def _read_training(nodes: Sequence[NodeMetrics], labels: Sequence[str]) -> Iterator[_Value]:
    """Yield what the first rank on this machine that reports something reports."""
    points = next((node.training for node in nodes if node.training), list[TrainingPoint]())
    steps = [point.step for point in points if point.step is not None]
    reported = {name: value for point in points for name, value in point.values.items()}
    yield "training_step", labels, steps[-1] if steps else None
    for metric, pattern in (("training_loss", LOSS), ("training_learning_rate", LEARNING_RATE)):
        if name := find_name(reported, pattern):
            yield metric, labels, reported[name]
