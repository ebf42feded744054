"""Requests to Prefect's API grow with nodes and attempts, not with the time that a job takes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from .conftest import Machine
from .test_python_api import output, python

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
train({config!r})
print(json.dumps(asked))
"""


def calls(machine: Machine, seconds: int) -> Counter[str]:
    config = machine.folder(f"sleep {seconds}\n", nodes=2, checkpointing=False)
    done = python(machine, COUNTED.format(config=str(config)))
    return Counter(json.loads(output(done).splitlines()[-1]))


def test_a_longer_job_asks_no_more(machine: Machine) -> None:
    short, long = calls(machine, 2), calls(machine, 14)
    assert sum(short.values()) > 5, "the calls were counted"
    assert sum(long.values()) <= sum(short.values()) + 1, long - short
