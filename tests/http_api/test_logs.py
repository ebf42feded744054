"""The log of a job over HTTP, as the clients of the hosted service read it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.job_service import log_reader
from prefect_bt.ledger.records import JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.line_format import format_lines

from .log_sites import LogSite, Tail, own, stamped

HOUR = 3600.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LogSite]:
    with LogSite(tmp_path).serving() as site:
        yield site


def old_job(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=40 * 24 * HOUR)
    site.begin(record)
    site.archive(record, stamped([site.at + i for i in range(50)]))
    site.at += 60
    site.end(record)
    return record, 50


def gap_of_three_hours(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=9 * HOUR)
    site.begin(record)
    times = [site.at + i for i in range(20)] + [site.at + 3 * HOUR + i for i in range(20)]
    site.archive(record, stamped(times))
    site.at += 8 * HOUR
    site.end(record)
    return record, 40


def queue_of_five_hours(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=6 * HOUR, state=JobState.PENDING)
    site.at += 5 * HOUR
    site.begin(record)
    site.archive(record, stamped([site.at + i for i in range(30)]))
    site.at += HOUR / 2
    site.end(record)
    return record, 30


def silent_job(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=HOUR)
    site.begin(record)
    site.archive(record, b"")
    site.end(record, state=JobState.FAILED)
    return record, 0


def one_millisecond(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=HOUR)
    site.begin(record)
    first = int(site.at) * 10**9 + 10**10
    site.archive(record, format_lines(first, (f"line {i}" for i in range(5000))))
    site.at += 60
    site.end(record)
    return record, 5000


def lines_without_time(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=HOUR)
    site.begin(record)
    site.at += 60
    data = b"first\nsecond\n" + stamped([site.at, site.at + 1]) + b"its rest\nand\nmore\n"
    site.archive(record, data)
    site.at += 60
    site.end(record)
    return record, 7


def three_ranks_twice(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=HOUR)
    for attempt in range(2):
        site.begin(record)
        for rank in range(3):
            times = [site.at + 0.3 * i + 0.1 * rank for i in range(100)]
            site.archive(record, stamped(times), attempt=attempt, rank=rank)
        site.at += 60
        if attempt == 0:
            site.ledger.end_attempt(record.id, Outcome(0, JobState.FAILED, ended_at=site.at))
            site.ledger.append_event(record.id, JobState.CREATED, attempt=1, message="Again.")
    site.end(record, attempt=1)
    return record, 600


def not_utf_8(site: LogSite) -> tuple[JobRecord, int]:
    record = site.job(ago=HOUR)
    site.begin(record)
    site.archive(record, stamped([site.at]).replace(b"line", b"\xff\xfe\x1b[31m\x00"))
    site.end(record)
    return record, 1


KINDS = [
    old_job,
    gap_of_three_hours,
    queue_of_five_hours,
    silent_job,
    one_millisecond,
    lines_without_time,
    three_ranks_twice,
    not_utf_8,
]


@pytest.mark.parametrize("make", KINDS)
def test_every_reader_of_an_ended_job_gets_every_line(site: LogSite, make, monkeypatch):
    record, count = make(site)
    tail = Tail(site, record)
    tail.poll()
    tail.poll()
    assert site.read_pages(record) == site.read_pages(record, limit=7) == tail.lines
    assert len(own(tail.lines)) == count
    assert tail.lines[-1]["message"].startswith("Job failed" if not count else "Job completed")
    # None of it is kept: what is older than the kept lines is read from the store.
    monkeypatch.setattr(log_reader, "MAX_PAGE_LINES", 1)
    monkeypatch.setattr(log_reader, "MAX_KEPT_LINES", 1)
    site.site.job_readers.__init__(site.ledger, site.site.settings.state_dir)
    assert site.read_pages(record) == site.read_pages(record, limit=7) == tail.lines
    newest = site.logs(record, limit=1000)
    assert newest == tail.lines[::-1][: len(newest)]
    assert len(newest) >= min(1000, len(tail.lines))


def test_line_has_the_keys_of_the_clients(site: LogSite):
    record, _ = not_utf_8(site)
    (line,) = [one for one in site.logs(record) if one["replica"] == "rank-0"]
    assert line == {
        "timestamp": str(int((site.at - 1) * 1e9)),
        "message": "��\x1b[31m\x00 0",
        "replica": "rank-0",
        "request_id": None,
        "level": None,
        "attempt": 0,
        "rank": 0,
    }


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.CREATED])
def test_job_that_waits_has_a_line_that_stays_the_same(site: LogSite, state: JobState):
    record = site.job(ago=5 * HOUR, state=state)
    first = site.logs(record, end_epoch_millis=int(time.time() * 1000) + 60_000)
    site.at += 7
    assert first
    assert site.logs(record) == first


@pytest.mark.parametrize("window", [(10, 20), (-20, -10)])
def test_empty_window_of_an_ended_job_has_its_last_line(site: LogSite, window: tuple[int, int]):
    record, _ = old_job(site)
    start, end = (int((time.time() + one) * 1000) for one in window)
    body = {"start_epoch_millis": start, "end_epoch_millis": end}
    assert site.logs(record, **body) == site.logs(record)[:1]
    assert site.logs(record, **body, direction="desc") == []
    assert site.logs(record, **body, direction="asc") == []


@pytest.mark.parametrize(("level", "expected"), [("WARNING", ["WARNING: b"]), ("error", [])])
def test_level_leaves_out_lines_below_and_without(site: LogSite, level: str, expected: list[str]):
    record = site.job(ago=HOUR)
    site.begin(record)
    texts = ["INFO: a", "WARNING: b", "c"]
    site.archive(record, stamped([site.at + i for i in range(3)], texts.__getitem__))
    site.end(record)
    assert own(site.logs(record, min_level=level)) == expected
    assert own(site.logs(record, min_level=level, direction="asc")) == expected


def test_get_is_post_with_a_limit_of_500(site: LogSite):
    record = site.job(ago=HOUR)
    site.begin(record)
    site.archive(record, stamped([site.at + i for i in range(700)]))
    answer = site.client.get(site.path(record, "logs")).json()["logs"]
    assert answer == site.logs(record)[:500]
    query = {"direction": "asc", "limit": 3, "start_epoch_millis": int(site.at * 1000)}
    page = site.client.get(site.path(record, "logs"), params=query).json()["logs"]
    assert page == site.logs(record, **query)


@pytest.mark.parametrize(
    "request_", [{"content": b""}, {"json": None}, {"json": {}}, {"json": {"limit": None}}]
)
def test_post_without_a_window_has_all_lines(site: LogSite, request_: dict):
    record, count = old_job(site)
    answer = site.client.post(site.path(record, "logs"), **request_)
    assert len(own(answer.json()["logs"])) == count


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": 1001},
        {"direction": "up"},
        {"min_level": "loud"},
        {"start_epoch_millis": -1},
        {"end_epoch_millis": 10**400},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_wrong_window_is_refused_with_a_message(site: LogSite, method: str, body: dict):
    record, _ = silent_job(site)
    how = {"params": body} if method == "GET" else {"json": body}
    answer = site.client.request(method, site.path(record, "logs"), **how)
    assert answer.status_code == 400
    assert next(iter(body)) in answer.json()["message"]
