"""Fixtures and hooks for every test: Ctrl-C works, a soak run has a seed and a length.

A shell that puts a run in the background makes its children ignore SIGINT, and every process that
a test starts inherits that; tests that press Ctrl-C would wait for ever.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Soak:
    """Hold the parameters of a soak run, from the variables SOAK_SEED and SOAK_LENGTH.

    `length` multiplies the number of rounds of a sweep. `random` depends on the seed and on the
    test alone, so that one test repeats what it did in a whole run.
    """

    seed: int
    length: int
    random: random.Random


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Soak:
    seed, length = int(os.environ.get("SOAK_SEED", "0")), int(os.environ.get("SOAK_LENGTH", "1"))
    return Soak(seed, length, random.Random(f"{seed}:{request.node.nodeid}"))
