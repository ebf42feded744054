"""Fixtures and hooks for every test: Ctrl-C works, a soak run has a seed and a length.

A shell that puts a run in the background makes its children ignore SIGINT, and every process that
a test starts inherits that; tests that press Ctrl-C would wait for ever.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.cost_report"]

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gate")
signal.signal(signal.SIGINT, signal.default_int_handler)
_STATE: Final = tempfile.TemporaryDirectory(prefix="prefect-bt-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name
"""A test without a state folder of its own writes nothing into that of a person."""


@dataclass(frozen=True)
class Soak:
    """Hold the parameters of a soak run, from the variables SOAK_SEED and SOAK_LENGTH.

    `length` multiplies the number of rounds of a sweep. `random` depends on the seed and on the
    test alone, so that one test repeats what it did in a whole run.
    """

    seed: int
    length: int
    random: random.Random


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each worker of xdist begin with its share of the slow tests.

    xdist gives each worker an equal run of consecutive tests, and a worker that is done takes from
    the end of another's: the quick tests at the ends fill the last minutes of all workers.
    """
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    slow = [item for item in items if _is_slow(item)]
    quick = iter([item for item in items if not _is_slow(item)])
    modules = list(dict.fromkeys(item.path for item in slow))
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = set(modules[worker::workers])
        ordered += [item for item in slow if item.path in share]
        ordered += islice(quick, max(0, len(items) * (worker + 1) // workers - len(ordered)))
    items[:] = [*ordered, *quick]


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "integration"))


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Soak:
    seed, length = int(os.environ.get("SOAK_SEED", "0")), int(os.environ.get("SOAK_LENGTH", "1"))
    return Soak(seed, length, random.Random(f"{seed}:{request.node.nodeid}"))
