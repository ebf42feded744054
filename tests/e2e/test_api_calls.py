"""Requests to Prefect's API grow with nodes and attempts, not with the time that a job takes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from .conftest import Machine
from .test_python_api import python

pytestmark = [pytest.mark.integration]

COUNTED = """
import json, re
from collections import Counter
import httpx

asked = Counter()

def counted(send):
    def wrapper(self, request, **more):
        asked[request.method + " " + re.sub(r"[0-9a-f-]{{36}}", "ID", request.url.path)] += 1
        return send(self, request, **more)
    return wrapper

httpx.Client.send = counted(httpx.Client.send)
httpx.AsyncClient.send = counted(httpx.AsyncClient.send)
from prefect_bt.flows.train import train
for config in {configs!r}:
    asked.clear()
    train(config)
    print(json.dumps(asked))
"""


def test_a_longer_job_asks_no_more(machine: Machine) -> None:
    """The first job asks what a process asks once; the other two are compared.

    Log lines are left out: Prefect sends them in batches by the clock, so their number of requests
    depends on the machine's load.
    """
    configs = [
        str(machine.folder(f"sleep {seconds}\n", nodes=2, checkpointing=False))
        for seconds in (0, 1, 9)
    ]
    out, err = python(machine, COUNTED.format(configs=configs)).communicate(timeout=400)
    counts = [Counter[str](json.loads(line)) for line in out.splitlines() if line.startswith("{")]
    assert len(counts) == 3, err
    _, short, long = counts
    assert sum(short.values()) > 5, "the calls were counted"
    for calls in (short, long):
        del calls["POST /api/logs/"]
    assert sum(long.values()) <= sum(short.values()) + 1, long - short
