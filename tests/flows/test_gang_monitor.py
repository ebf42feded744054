"""The flow's monitor: what it reports of a running gang, how often, and which hang ends it."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.flows.tasks.reporting import gang_monitor
from prefect_bt.flows.tasks.reporting.gang_monitor import GangMonitor
from prefect_bt.job_metrics.node_metrics import MetricsWriter, NodeFacts, TrainingPoint
from prefect_bt.ledger.records import NodePhase, NodeStatus, RetryBudget
from tests.ledger.test_node_objects import Clock

IDLE = {
    **dict.fromkeys(("cpu", "read", "written", "received", "sent", "lines", "blocked"), 0.0),
    "stopped": 0.0,
    "memory_available": 32e9,
    "disk_free": 500e9,
    "disk_size": 1e12,
}
BUSY = {**IDLE, "cpu": 1.0, "lines": 10.0}


class Node:
    """A handle whose file the test writes."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank, self.fails = rank, False
        self._file = folder / f"rank-{rank}"
        self._writer = MetricsWriter(self._file, NodeFacts(memory_total=64 << 30))

    def write(self, at: float, values: dict[str, float], step: int | None = None) -> None:
        self._writer.write_sample(at, values)
        if step is not None:
            self._writer.write_point(TrainingPoint(at, step, {"loss": 1.0}))
        self._writer.flush()

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        if self.fails:
            raise StoreError("no answer")
        return self._file.read_bytes()[offset : offset + limit]


class Rig:
    """A monitor of two nodes, and what it reports."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, stop_on_hang: bool
    ) -> None:
        self.advice, self.cards = list[str](), list[float]()
        self.clock = Clock()
        self.nodes = [Node(folder, rank) for rank in range(2)]
        running = [NodeStatus(rank, NodePhase.RUNNING) for rank in range(2)]
        self.gang: Any = SimpleNamespace(attempt=0, handles=self.nodes, statuses=running)
        site: Any = SimpleNamespace(
            record=SimpleNamespace(retries=RetryBudget(stop_on_hang=stop_on_hang))
        )
        log = logging.getLogger("test")
        monkeypatch.setattr(gang_monitor, "get_run_logger", lambda: log)
        monkeypatch.setattr(
            gang_monitor,
            "report_advice",
            lambda _, advice, attempt: self.advice.append(advice.kind),
        )
        monkeypatch.setattr(
            gang_monitor, "publish_job_card", lambda _: self.cards.append(self.clock.now)
        )
        self.monitor = GangMonitor(site, self.gang, clock=lambda: self.clock.now)

    def run(self, seconds: int, values: dict[str, float], *, steps: bool) -> None:
        for _ in range(seconds // 5):
            self.clock.now += 5
            for node in self.nodes:
                node.write(self.clock.now, values, int(self.clock.now) if steps else None)
            self.monitor.poll()


@pytest.mark.parametrize("stop_on_hang", [True, False])
def test_a_hang_is_reported_once_and_ends_the_attempt_with_stop_on_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_on_hang: bool
) -> None:
    rig = Rig(tmp_path, monkeypatch, stop_on_hang=stop_on_hang)
    rig.run(300, BUSY, steps=True)
    assert rig.advice == []
    rig.run(60, IDLE, steps=False)
    assert rig.advice == ["hang"]
    assert bool(rig.monitor.find_hang()) is stop_on_hang
    rig.run(1800, IDLE, steps=False)
    assert rig.advice == ["hang"] * 2, "again after half an hour"


def test_a_rank_that_has_ended_hangs_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, stop_on_hang=True)
    rig.run(300, BUSY, steps=True)
    rig.gang.statuses[1] = NodeStatus(1, NodePhase.FLUSHING, exit_code=0)
    rig.run(120, IDLE, steps=False)
    assert (rig.advice, rig.monitor.find_hang()) == ([], "")


def test_a_store_that_fails_delays_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch, stop_on_hang=True)
    rig.run(300, BUSY, steps=True)
    rig.nodes[1].fails = True
    rig.run(60, {**BUSY, "disk_free": 1e6}, steps=True)
    rig.nodes[1].fails = False
    rig.monitor.poll()
    assert rig.advice == ["disk", "disk"]


def test_the_card_is_refreshed_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, stop_on_hang=False)
    for _ in range(30 * 24 * 60):
        rig.clock.now += 60
        rig.monitor.poll()
    assert 10 < len(rig.cards) < 20
    assert len([at for at in rig.cards if at < rig.cards[0] + 3600]) < 8
