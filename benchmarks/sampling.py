"""Sampling: what the metrics of a node cost its agent, beside psutil and nvitop at the same rate.

`python benchmarks/sampling.py [--runs N] [--samples N] [-o json]`. Each contender samples the same
tree of idle processes on this machine. The figure is its CPU time per sample as a part of the five
seconds between two samples. nvitop is measured if it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
from figures import Row, as_json, as_table, paired

from prefect_bt.host.processes import list_descendants
from prefect_bt.job_metrics.node_metrics import NodeFacts
from prefect_bt.job_metrics.training_values.reader import TrainingValuesReader
from prefect_bt.node_agent.sampling.sampler import NodeSampler, SamplerConfig
from prefect_bt.node_agent.sampling.usage import TreeMeter

INTERVAL = 5.0
MAX_PERCENT = 0.3
GOAL = f"under {MAX_PERCENT} % of a core"
LINE = "step {}/100000 loss 1.234 lr 1e-4 grad_norm 0.5 tokens/s 12345\n"


@contextlib.contextmanager
def tree(size: int) -> Iterator[int]:
    """Yield a process with so many idle children, which wait for it."""
    source = (
        "import subprocess, sys\n"
        "children = [subprocess.Popen(['sleep', '3600']) for _ in range(int(sys.argv[1]))]\n"
        "print('ready', flush=True)\n"
        "try:\n    sys.stdin.read()\nfinally:\n    [child.kill() for child in children]"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin and process.stdout
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait()


def sample_with_prefect_bt(root: int, samples: int, folder: Path) -> None:
    values = TrainingValuesReader([folder], folder / "metrics.jsonl")
    node = NodeSampler(
        SamplerConfig(folder / "metrics", NodeFacts(), TreeMeter(), folder, [folder], values)
    )
    node.start()
    for number in range(samples):
        node.add_text("".join(LINE.format(10 * number + line) for line in range(10)))
        node.offer(list_descendants(root))
        while node._trees.qsize():  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.001)
    node.close()


def sample_with_psutil(root: int, samples: int, folder: Path) -> None:
    parent = psutil.Process(root)
    for _ in range(samples):
        for process in [parent, *parent.children(recursive=True)]:
            with process.oneshot():
                process.cpu_times()
                process.memory_info()
                process.io_counters()
                process.status()
        psutil.virtual_memory()
        psutil.net_io_counters()
        psutil.disk_usage(str(folder))


def sample_with_nvitop(root: int, samples: int, folder: Path) -> None:
    from nvitop import ResourceMetricCollector  # pyright: ignore

    _ = folder
    collector = ResourceMetricCollector(root_pids={root}, interval=0.05)  # pyright: ignore
    with collector("benchmark"):
        for _ in range(samples):
            time.sleep(0.06)  # it takes a sample if its interval has passed
            collector.collect()  # pyright: ignore


def measure(sample: Callable[[int, int, Path], None], root: int, samples: int) -> float:
    """Return the percent of a core, measured in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with tempfile.TemporaryDirectory() as folder:
            sample(root, 3, Path(folder))  # what is imported and opened once
        with tempfile.TemporaryDirectory() as folder:
            before = time.process_time()
            sample(root, samples, Path(folder))
            used = time.process_time() - before
        os.write(writing, str(100 * used / samples / INTERVAL).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return float(text or "nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    chosen = parser.parse_args()
    rivals = {"psutil": sample_with_psutil}
    with contextlib.suppress(ImportError):
        import nvitop  # noqa: F401  # pyright: ignore

        rivals["nvitop"] = sample_with_nvitop
    rows: list[Row] = []
    for size in (1, 64):
        with tree(size) as root:
            for name, rival in rivals.items():
                pairs = [
                    (
                        measure(sample_with_prefect_bt, root, chosen.samples),
                        measure(rival, root, chosen.samples),
                    )
                    for _ in range(chosen.runs)
                ]
                rows.append(paired(f"sample_{size}_processes", "% core", pairs, peer=name))
    rows = [replace(row, goal=GOAL, met=row.ours < MAX_PERCENT) for row in rows]
    print(as_json(rows) if chosen.output == "json" else as_table(rows))


if __name__ == "__main__":
    main()
