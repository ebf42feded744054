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

def count(request, answer):
    if answer.status_code != 503:  # a busy SQLite is asked again
        asked[request.method + " " + re.sub(r"[0-9a-f-]{{36}}", "ID", request.url.path)] += 1
    return answer

send, send_async = httpx.Client.send, httpx.AsyncClient.send

def counted(self, request, **more):
    return count(request, send(self, request, **more))

async def counted_async(self, request, **more):
    return count(request, await send_async(self, request, **more))

httpx.Client.send, httpx.AsyncClient.send = counted, counted_async
from prefect_bt.flows.train import train
for config in {configs!r}:
    asked.clear()
    train(config)
    print(json.dumps(asked))
"""


def test_a_longer_job_asks_no_more(machine: Machine) -> None:
    """The first job asks what a process asks once; the other two are compared.

    Log lines are left out: Prefect sends them in batches by the clock, so their number of requests
    depends on the machine's load. The run is asked for at 0, 3, 9, 21 s and so on until Prefect's
    events are followed, which depends on it as well: those questions have a bound of their own.
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
    asked_for_run = [calls.pop("POST /api/flow_runs/filter", 0) for calls in (short, long)]
    assert asked_for_run[1] <= asked_for_run[0] + 4
    for calls in (short, long):
        del calls["POST /api/logs/"]
    assert sum(long.values()) <= sum(short.values()) + 1, long - short
