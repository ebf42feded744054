"""Reports of a container: the allowed ones, and the limit for all others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from prefect_bt.node_agent.commands.container_reports import (
    MAX_REPORT_BYTES,
    READ_BYTES,
    ReportReader,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_ready_then_a_code_for_each_order(pipe: tuple[int, int]) -> None:
    reports = ReportReader(pipe[0])
    reports.read()
    assert reports.next_report() is None
    os.write(pipe[1], b"ready\n")
    reports.read()
    assert (reports.next_report(), reports.next_report()) == ("ready", None)
    for code in (b"0", b"255"):
        reports.expect_exit_code()
        os.write(pipe[1], code)
        reports.read()
        assert reports.next_report() is None, "half a line is none"
        os.write(pipe[1], b"\n")
        reports.read()
        assert reports.next_report() == code.decode()
    assert reports.broken == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"7\n", "an invalid report"),
        (b"ready\nready\n", "an invalid report"),
        (b"ready\n\n", "an invalid report"),
        (b"ready\n256\n", "an invalid report"),
        (b"ready\n-1\n", "an invalid report"),
        (b"ready\n\xd9\xa3\n", "an invalid report"),
        (b"ready\n0\n0\n", "a report without an order"),
        (b"x" * (MAX_REPORT_BYTES + 1), "a line without an end"),
    ],
)
def test_an_invalid_report_ends_it(pipe: tuple[int, int], said: bytes, why: str) -> None:
    reports = ReportReader(pipe[0])
    reports.expect_exit_code()
    os.write(pipe[1], said)
    reports.read()
    assert why in reports.broken
    assert "\n" not in reports.broken
    assert len(reports.broken) < 200
    os.write(pipe[1], b"0\n")
    reports.read()
    assert os.read(pipe[0], 100) == b"0\n", "nothing is read any more"


def test_a_flood_is_read_once(pipe: tuple[int, int]) -> None:
    reports = ReportReader(pipe[0])
    os.write(pipe[1], bytes(2 * READ_BYTES))
    reports.read()
    reports.read()
    assert len(os.read(pipe[0], 4 * READ_BYTES)) == READ_BYTES
