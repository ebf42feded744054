"""Write the metrics of a node: samples of its usage, and the values that its trainer reports.

The agent's loop hands over the list of the node's processes every few seconds; a thread does the
rest. A GPU driver or a disk that does not answer holds up the thread and never the agent, and an
error in it ends the metrics and never the node.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from prefect_bt.host.processes import ProcessStat
from prefect_bt.job_metrics.node_metrics import MetricsWriter, NodeEvent, NodeFacts
from prefect_bt.job_metrics.training_values.reader import TrainingValuesReader
from prefect_bt.node_agent.sampling.gpus import XID, GpuReader
from prefect_bt.node_agent.sampling.usage import Usage, UsageMeter

CLOSE_TIMEOUT: Final = 5.0
"""Longest wait for the last values at the node's end, in seconds."""
MAX_BACKLOG: Final = 2
"""Process lists that wait for the thread. Further ones are dropped."""


@dataclass(frozen=True)
class SamplerConfig:
    """Objects of a sampler. They are used in its thread only."""

    file: Path
    facts: NodeFacts
    """Facts of the node, without its GPUs."""
    meter: UsageMeter
    scratch: Path | None
    """Scratch folder of the commands."""
    volumes: Sequence[Path]
    """Folders that the commands write to."""
    values: TrainingValuesReader
    open_gpus: Callable[[], GpuReader | None] = field(default=lambda: None)


class NodeSampler:
    """The sampler of one node. Its methods return at once, except `close`."""

    def __init__(self, config: SamplerConfig) -> None:
        self._config = config
        self._trees = queue.SimpleQueue[Sequence[ProcessStat] | None]()
        self._lines = 0
        """Lines and frames of progress bars that the commands have printed."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="metrics")

    def start(self) -> None:
        self._thread.start()

    def add_text(self, text: str) -> None:
        """Take a piece of what the commands print."""
        self._lines += text.count("\n") + text.count("\r")
        self._config.values.add_text(text, time.time())

    def offer(self, tree: Sequence[ProcessStat]) -> None:
        """Take a sample. `tree`: the living processes of the commands."""
        if self._trees.qsize() < MAX_BACKLOG:
            self._trees.put(tree)

    def close(self) -> None:
        """Write the last training values. Return after CLOSE_TIMEOUT even if that hangs."""
        self._trees.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    # -- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        config, gpus = self._config, self._config.open_gpus()
        facts = replace(config.facts, gpus=gpus.facts if gpus is not None else ())
        writer = MetricsWriter(config.file, facts)
        rates, printed = _Rates(), 0
        while (tree := self._trees.get()) is not None:
            now = time.time()
            usage = rates.update(config.meter.measure(tree), time.monotonic())
            lines, printed = self._lines - printed, self._lines
            values = {
                **usage,
                **_measure_disks(config.scratch, config.volumes),
                **(gpus.sample() if gpus is not None else {}),
                "lines": lines,
                "stopped": sum(process.is_stopped for process in tree),
                "blocked": sum(process.is_blocked for process in tree),
            }
            writer.write_sample(now, values)
            for sentence in gpus.read_xids() if gpus is not None else ():
                writer.write_event(NodeEvent(now, XID, sentence))
            self._write_points(writer)
            writer.flush()
        self._write_points(writer, final=True)
        writer.close()

    def _write_points(self, writer: MetricsWriter, *, final: bool = False) -> None:
        for point in self._config.values.poll(final=final):
            writer.write_point(point)


class _Rates:
    """Converts counters to amounts per second. The first values of counters have no rate."""

    def __init__(self) -> None:
        self._before: Usage | None = None
        self._at = 0.0

    def update(self, usage: Usage, at: float) -> dict[str, float | None]:
        before, passed = self._before or Usage(), at - self._at
        self._before, self._at = usage, at

        def rate(new: float | None, old: float | None) -> float | None:
            """Return a rate. A counter is smaller after the end of a process that it included."""
            return None if new is None or old is None else max(0.0, new - old) / passed

        return {
            "cpu": rate(usage.cpu, before.cpu),
            "memory": usage.memory,
            "memory_available": usage.memory_available,
            "read": rate(usage.read, before.read),
            "written": rate(usage.written, before.written),
            "received": rate(usage.received, before.received),
            "sent": rate(usage.sent, before.sent),
        }


def _measure_disks(scratch: Path | None, volumes: Sequence[Path]) -> dict[str, float | None]:
    """Return the columns of disks; the free bytes are those of the fullest disk."""
    measured = [size for folder in volumes if (size := _measure_disk(folder)) is not None]
    fullest = min(measured, key=lambda size: size[1] / max(1, size[0]), default=None)
    own = _measure_disk(scratch) if scratch is not None else None
    return {
        "disk": None if own is None else own[0] - own[1],
        "disk_total": None if own is None else own[0],
        "disk_free": None if fullest is None else fullest[1],
        "disk_size": None if fullest is None else fullest[0],
    }


def _measure_disk(folder: Path) -> tuple[int, int] | None:
    """Return the size of the disk and what a user may still write; None if it is not known."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
