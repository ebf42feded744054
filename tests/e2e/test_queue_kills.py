"""Two machines take jobs of one queue while processes are killed: what is promised holds.

`python benchmarks/queue_benchmark.py pool` does the same with many long jobs, and measures it.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import LENIENCE, Machine

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    *("queue_jobs", "queue_machines", "queue_records", "queue_checks", "queue_kills"),
    *("queue_watch", "queue_pool", "queue_bucket", "gangs", "figures", "servers"),
)
GPUS, CAP = 2, 3
LIMIT = 300.0
"""Seconds that no job takes."""
PATIENCE = 60.0
"""Seconds until twelve jobs are over on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("count", "kills", "seconds", "latency", "skew"),
    [
        pytest.param(12, 6, (3.0, 6.0), 0.0, 0.0, id="few", marks=pytest.mark.extended),
        pytest.param(200, 40, (0.7, 3.0), 0.0, 0.0, id="many", marks=pytest.mark.soak),
        pytest.param(24, 8, (0.7, 3.0), 0.04, 600.0, id="far bucket", marks=pytest.mark.soak),
    ],
)
def test_a_pool_keeps_its_promises_under_kills(
    modules: dict[str, ModuleType],
    served_machine: Machine,
    tmp_path: Path,
    count: int,
    kills: int,
    seconds: tuple[float, float],
    latency: float,
    skew: float,
) -> None:
    """Pushes, workers, flows, supervisors and whole jobs are killed; pushes and workers stop.

    The store is a folder, or a bucket whose requests take `latency` seconds longer; the clock of a
    machine is `skew` seconds ahead.
    """
    seed = int(os.environ.get("SOAK_SEED", "7"))
    print(f"seed {seed}")
    jobs = modules["queue_jobs"].draw_jobs(
        count, seed, sizes=(1, 1, 2), seconds=seconds, margin=LIMIT
    )
    assert {job.spot for job in jobs} == {True, False}
    patience = LENIENCE * PATIENCE * count / 12
    with ExitStack() as servers:
        store, own = "", dict[str, str]()
        if latency:
            bucket = modules["queue_bucket"].serve_bucket(tmp_path, latency)
            store, own, _ = servers.enter_context(bucket)
        pool = modules["queue_machines"].make_pool(
            tmp_path / "pool", {**served_machine.api, **own}, gpus=GPUS, store=store, skew=skew
        )
        servers.callback(pool.end)
        chosen = {"cap": CAP, "seed": seed, "kills": kills}
        result = modules["queue_pool"].run_pool(pool, jobs, patience=patience, **chosen)
    watch = result.watch
    print(f"a job that had room waited for {watch.longest:.1f} s at most in {watch.watched:.0f} s")
    print(f"{watch.left_out:.0f} s without a worker where there was room are left out of that")
    assert result.faults == [], result.kills
    assert len(result.kills) >= kills / 2, result.kills  # short jobs end before the last ones
    assert len({run.host for run in result.runs}) == 2
