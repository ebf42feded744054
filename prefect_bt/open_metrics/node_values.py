"""Follow the files of metrics that the running nodes of this machine append to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt import codec
from prefect_bt.filesystem.confined import open_regular
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.host.job_lock import is_free
from prefect_bt.host.state_folder import NodeFolder
from prefect_bt.job_metrics.node_metrics import MetricsDecoder, NodeMetrics
from prefect_bt.planning.plan import NodePlan

MAX_READ_BYTES: Final = 1 << 19
"""Bytes of a node's file that one scrape decodes. A file that was long before takes several."""
_MAX_NAMES: Final = 64
"""Series of a trainer that are kept."""


@dataclass
class RunningNode:
    """A node that runs on this machine; `labels`: job ID, project, name, rank, attempt."""

    folder: NodeFolder
    labels: tuple[str, str, str, str, str]
    decoder: MetricsDecoder
    training: dict[str, float] = field(default_factory=dict[str, float])
    """The last value that the trainer reported under each of its names."""
    step: int | None = None

    @property
    def job_id(self) -> str:
        return self.labels[0]

    @property
    def metrics(self) -> NodeMetrics:
        """The newest sample alone."""
        return self.decoder.node

    def read_new(self) -> bool:
        """Decode what was appended; return whether the end of the file is reached. OSError."""
        with os.fdopen(open_regular(str(self.folder.metrics)), "rb") as file:
            file.seek(self.decoder.offset)
            data = file.read(MAX_READ_BYTES)
        self.decoder.feed(data)
        node = self.metrics
        for point in node.training:
            self.step = self.step if point.step is None else point.step
            for name, value in point.values.items():
                if name in self.training or len(self.training) < _MAX_NAMES:
                    self.training[name] = value
        node.training.clear()
        node.events.clear()
        if node.times:
            node.keep_since(node.times[-1], points=0)
        return len(data) < MAX_READ_BYTES


class RunningNodes:
    """The nodes of the jobs in a state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir, self._known = state_dir, dict[Path, RunningNode]()

    def read(self) -> Iterator[RunningNode]:
        """Yield each running node whose file was read to its end."""
        running = [
            path
            for path in find_paths(self._state_dir / "jobs", "*/attempt-*/rank-*")
            if not is_free(path / "lock")
        ]
        self._known = {path: node for path, node in self._known.items() if path in running}
        for path in running:
            with suppress(OSError, ValueError, KeyError, TypeError):  # it ends, or just begins
                node = self._known.get(path) or _open_node(path)
                self._known[path] = node
                if node.read_new():
                    yield node


def _open_node(path: Path) -> RunningNode:
    folder = NodeFolder(path)
    plan = codec.loads(NodePlan, folder.plan.read_bytes())
    labels = (
        plan.job_id,
        plan.environment.get("BT_TRAINING_PROJECT_NAME", plan.project_id),
        plan.environment.get("BT_TRAINING_JOB_NAME", ""),
        str(plan.rank),
        str(plan.attempt),
    )
    return RunningNode(folder, labels, MetricsDecoder(NodeMetrics(plan.attempt, plan.rank)))
