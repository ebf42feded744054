"""How lines are written."""

import json

import pytest

from prefect_bt.cli.logs.lines import format_json, write_document, write_lines
from prefect_bt.logs.line_filter import JobLine
from prefect_bt.logs.line_format import LogLine


def line(rank: int, message: str) -> JobLine:
    return JobLine(0, LogLine(1, message, rank))


def test_objects():
    assert json.loads(format_json(line(3, "a"))) == {
        "timestamp": "1",
        "message": "a",
        "replica": "rank-3",
        "level": None,
        "attempt": 0,
    }


def test_written(capsys: pytest.CaptureFixture[str]):
    assert write_lines([line(0, "a"), None, line(1, "b")], format_json) == 2
    out = capsys.readouterr().out.splitlines()
    assert [json.loads(one)["message"] for one in out] == ["a", "b"]
    write_document([line(0, 'quote " me'), None], job_id="x", rank=None)
    document = json.loads(capsys.readouterr().out)
    assert (document["job_id"], document["rank"]) == ("x", None)
    assert [one["message"] for one in document["logs"]] == ['quote " me']
    write_document([], job_id="x")
    assert json.loads(capsys.readouterr().out) == {"job_id": "x", "logs": []}
