"""Two machines take jobs of one queue while processes are killed: what is promised holds.

`python benchmarks/queue_benchmark.py pool` does the same with many long jobs, and measures it.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import LENIENCE, Machine

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    *("queue_jobs", "queue_machines", "queue_records", "queue_checks", "queue_kills"),
    *("queue_watch", "queue_pool"),
)
JOBS, GPUS, CAP, SEED, KILLS = 10, 2, 3, 7, 3
LIMIT = 300.0
"""Seconds that no job takes."""
PATIENCE = 60.0
"""Seconds until all jobs are over on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.mark.extended
def test_a_pool_keeps_its_promises_under_kills(
    modules: dict[str, ModuleType], served_machine: Machine, tmp_path: Path
) -> None:
    small = {"sizes": (1, 1, 2), "seconds": (3.0, 6.0), "margin": LIMIT}
    jobs = modules["queue_jobs"].draw_jobs(JOBS, SEED, **small)
    assert {job.spot for job in jobs} == {True, False}
    pool = modules["queue_machines"].make_pool(tmp_path / "pool", served_machine.api, gpus=GPUS)
    try:
        chosen = {"cap": CAP, "seed": SEED, "kills": KILLS}
        result = modules["queue_pool"].run_pool(pool, jobs, patience=LENIENCE * PATIENCE, **chosen)
    finally:
        pool.end()
    assert result.faults == [], result.kills
    assert len(result.kills) == KILLS, result.kills
    assert len({run.host for run in result.runs}) == 2
