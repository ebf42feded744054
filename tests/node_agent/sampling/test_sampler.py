"""The sampler: real processes are measured, and nothing that it meets reaches the agent."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefect_bt.host.processes import ProcessStat, list_descendants
from prefect_bt.job_metrics.node_metrics import NodeFacts, NodeMetrics, decode_metrics
from prefect_bt.job_metrics.training_values.reader import TrainingValuesReader
from prefect_bt.node_agent.sampling import sampler
from prefect_bt.node_agent.sampling.sampler import NodeSampler, SamplerConfig
from prefect_bt.node_agent.sampling.usage import TreeMeter, Usage

WORK = """
import sys, time
held = bytearray(200 << 20)
print("ready", flush=True)
until = time.process_time() + 30
while time.process_time() < until:
    pass
"""


@contextmanager
def child(source: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has printed its first line."""
    arguments = [sys.executable, "-c", source]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def tree_of(process: subprocess.Popen[str]) -> list[ProcessStat]:
    return [stat for stat in list_descendants(os.getpid()) if stat.pid == process.pid]


class Meter:
    """A meter with a test's own usage, or error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def measure(self, tree: Sequence[ProcessStat]) -> Usage:
        if self.error is not None:
            raise self.error
        return Usage(cpu=time.monotonic(), memory=1 << 30)

    def open_gpus(self, reserved: Sequence[str]) -> None:
        return None


def config(folder: Path, meter: Meter | TreeMeter, **changes: object) -> SamplerConfig:
    values = {
        "file": folder / "metrics",
        "facts": NodeFacts(),
        "meter": meter,
        "scratch": folder,
        "volumes": [folder],
        "values": TrainingValuesReader([], None),
        **changes,
    }
    return SamplerConfig(**values)  # pyright: ignore[reportArgumentType]


def read(folder: Path) -> NodeMetrics:
    return decode_metrics((folder / "metrics").read_bytes(), attempt=0, rank=0)


def wait_for_samples(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while not (folder / "metrics").exists() or len(read(folder).times) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_is_measured_and_a_stopped_one_is_seen(tmp_path: Path) -> None:
    node = NodeSampler(config(tmp_path, TreeMeter()))
    node.start()
    with child(WORK) as process:
        node.offer(tree_of(process))
        wait_for_samples(tmp_path, 1)
        ticks = tree_of(process)[0].ticks
        while tree_of(process)[0].ticks < ticks + 20:
            time.sleep(0.01)
        node.offer(tree_of(process))
        wait_for_samples(tmp_path, 2)
        os.kill(process.pid, signal.SIGSTOP)
        while not tree_of(process)[0].is_stopped:
            time.sleep(0.01)
        node.offer(tree_of(process))
        wait_for_samples(tmp_path, 3)
    node.add_text("step 1 loss 2.5\n 50%|##  | 1/2\rstep 2 loss 2.25\n")
    node.offer([])
    node.close()
    found = read(tmp_path)
    assert found.columns["cpu"][1] > 0
    assert found.columns["memory"][1] > 200 << 20
    assert found.columns["stopped"] == [0, 0, 1, 0]
    assert found.columns["lines"] == [0, 0, 0, 3]
    assert [(point.step, point.values) for point in found.training] == [
        (1, {"loss": 2.5}),
        (2, {"loss": 2.25}),
    ]
    assert found.columns["disk_total"][0] >= found.columns["disk"][0] > 0
    assert found.columns["disk_size"][0] >= found.columns["disk_free"][0] > 0
    assert found.columns["memory_available"][0] > 0
    assert found.gpu_columns("utilization") == {}


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("garbage"), RuntimeError("ours")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_ends_the_metrics_and_not_the_agent(tmp_path: Path, error: Exception) -> None:
    node = NodeSampler(config(tmp_path, Meter(error)))
    node.start()
    for _ in range(5):
        node.offer([])
        node.add_text("line\n")
    node.close()


def test_a_driver_that_hangs_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "CLOSE_TIMEOUT", 0.1)
    hangs = threading.Event()
    node = NodeSampler(config(tmp_path, Meter(), open_gpus=lambda: hangs.wait(10) and None))
    node.start()
    for _ in range(1000):
        node.offer([])
    assert node._trees.qsize() <= sampler.MAX_BACKLOG
    node.close()
    hangs.set()
