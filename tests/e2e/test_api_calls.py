"""Requests to Prefect's API grow with nodes and attempts, not with the time that a job takes."""

import re
from collections import Counter
from typing import Any

import httpx
import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of this process by method and path."""
    found: Counter[str] = Counter()
    send, send_async = httpx.Client.send, httpx.AsyncClient.send

    def count(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        if answer.status_code != 503:  # a busy SQLite is asked again
            found[f"{request.method} {re.sub(r'[0-9a-f-]{36}', 'ID', request.url.path)}"] += 1
        return answer

    def counted(self: httpx.Client, request: httpx.Request, **more: Any) -> httpx.Response:
        return count(request, send(self, request, **more))

    async def counted_async(
        self: httpx.AsyncClient, request: httpx.Request, **more: Any
    ) -> httpx.Response:
        return count(request, await send_async(self, request, **more))

    monkeypatch.setattr(httpx.Client, "send", counted)
    monkeypatch.setattr(httpx.AsyncClient, "send", counted_async)
    return found


def test_a_longer_job_asks_no_more(machine: Machine, requests: Counter[str]) -> None:
    """The first job asks what a process asks once; the other two are compared.

    Log lines are left out: Prefect sends them in batches by the clock, so their number of requests
    depends on the machine's load. The run is asked for at 0, 3, 9, 21 s and so on until Prefect's
    events are followed, which depends on it as well: those questions have a bound of their own.
    """
    counts: list[Counter[str]] = []
    for seconds in (0, 0, 9):
        requests.clear()
        machine.completed(machine.folder(f"sleep {seconds}\n", checkpointing=False))
        counts.append(requests.copy())
    _, short, long = counts
    assert sum(short.values()) > 5, "the calls were counted"
    for_run, logs = "POST /api/flow_runs/filter", "POST /api/logs/"
    assert long[for_run] <= short[for_run] + 4
    for calls in (short, long):
        del calls[for_run], calls[logs]
    assert sum(long.values()) <= sum(short.values()) + 1, long - short
