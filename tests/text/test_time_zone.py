"""Times that people read or write are in UTC on every machine, and say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from prefect_bt.attempts.failure_summary import format_moment
from prefect_bt.cli.ui.tables import format_time
from prefect_bt.logs.line_format import LogLine, render_line
from prefect_bt.text.durations import parse_since
from prefect_bt.text.quantities import format_utc
from prefect_bt.training_cache.document import cache_document
from prefect_bt.training_cache.usage import CacheEntry, CacheSummary

AT = 1_700_000_000
"""2023-11-14 22:13:20 UTC."""


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"], autouse=True)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def modified() -> str:
    entry = CacheEntry("a", 1, AT + 0.5, "file", "-rw-r--r--")
    return cache_document(CacheSummary("p", entries=[entry]))["files"][0]["modified"]


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda: format_utc(AT), "2023-11-14 22:13:20 UTC"),
        (lambda: format_time("2023-11-15T07:13:20+09:00"), "2023-11-14 22:13:20 UTC"),
        (lambda: format_moment(AT, None), "at 22:13:20 UTC"),
        (
            lambda: render_line(LogLine(AT * 10**9, "text", 1)),
            "[2023-11-14 22:13:20]: (rank-1) text",
        ),
        (modified, "2023-11-14T22:13:20+00:00"),
    ],
)
def test_a_time_is_written_in_utc(write: Callable[[], str], text: str) -> None:
    assert write() == text


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20",
        "2023-11-14 22:13:20",
        "2023-11-14 22:13:20 UTC",
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20+00:00",
        "2023-11-15T07:13:20+09:00",
    ],
)
def test_a_time_without_a_zone_is_read_in_utc(text: str) -> None:
    assert parse_since(text, now=0) == AT * 10**9
