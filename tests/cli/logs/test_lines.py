"""How lines are folded and printed while they come."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from prefect_bt.cli.logs.lines import (
    deduplicate,
    format_json,
    format_text,
    write_document,
    write_lines,
)
from prefect_bt.logs.deduplication import LineDeduplicator
from prefect_bt.logs.job_reader import JobLine
from prefect_bt.logs.line_format import LogLine


def line(rank: int, message: str) -> JobLine:
    return JobLine(0, LogLine(1, message, rank))


def told(shown: object) -> list[object]:
    return [one if one is None else format_text(one).partition("]: ")[2] for one in shown]  # pyright: ignore


def test_without_folding_all_goes_through():
    found = [line(0, "a"), None, line(1, "a")]
    assert list(deduplicate(found, None)) == found


def test_a_pause_lets_out_what_has_waited_long_enough():
    now = [0.0]

    def looks() -> Iterator[JobLine | None]:
        yield line(0, "a")
        for _ in range(4):
            now[0] += 0.4
            yield None
        yield line(1, "b")

    shown = told(deduplicate(looks(), LineDeduplicator(range(3), clock=lambda: now[0])))
    assert shown == [None, None, "(rank-0) a", None, None, "(rank-1) b"]


def test_whoever_leaves_sees_what_was_waiting():
    def looks() -> Iterator[JobLine | None]:
        yield line(0, "a")
        yield line(1, "a")
        raise KeyboardInterrupt

    shown = deduplicate(looks(), LineDeduplicator(range(3)))
    assert told([next(shown)]) == ["(ranks 0-1) a"]
    with pytest.raises(KeyboardInterrupt):
        next(shown)


def test_objects():
    (whole,) = deduplicate([line(0, "a"), line(2, "a")], LineDeduplicator())
    assert whole is not None
    assert json.loads(format_json(whole)) == {
        "timestamp": "1",
        "message": "a",
        "replica": "ranks 0,2",
        "level": None,
        "attempt": 0,
        "ranks": [0, 2],
    }
    assert "ranks" not in json.loads(format_json(line(3, "a")))


def test_written(capsys: pytest.CaptureFixture[str]):
    assert write_lines([line(0, "a"), None, line(1, "b")], as_json=True) == 2
    out = capsys.readouterr().out.splitlines()
    assert [json.loads(one)["message"] for one in out] == ["a", "b"]
    write_document([line(0, 'quote " me'), None], job_id="x", rank=None)
    document = json.loads(capsys.readouterr().out)
    assert (document["job_id"], document["rank"]) == ("x", None)
    assert [one["message"] for one in document["logs"]] == ['quote " me']
    write_document([], job_id="x")
    assert json.loads(capsys.readouterr().out) == {"job_id": "x", "logs": []}
