"""Live logs of nodes on other machines: a reader's requests to the store, and its outages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.host.job_lock import host_id
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import REFRESH_INTERVAL, GangObjects
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.job_reader import JobLogs
from prefect_bt.logs.line_format import format_line
from prefect_bt.logs.live_logs import MARK_INTERVAL, LiveLogs, PublishedLog, list_published_logs
from prefect_bt.object_store import open_store
from tests.jobs.records import new_record
from tests.ledger.test_node_objects import Breakable
from tests.written_jobs import write_job

BOX = "box-7:0123456789ab"


class Reader:
    """A machine that reads the logs of a job of another machine."""

    def __init__(self, folder: Path, substrate: str = "local") -> None:
        self.now, self.folder = 1000.0, folder
        self.store = Breakable(open_store(str(folder / "store")))
        self.ledger = Ledger(self.store)  # pyright: ignore[reportArgumentType]
        self.record = new_record(self.ledger, substrate=substrate)
        self.gang: Any = None

    def begin(self, host: str) -> None:
        ledger, record = self.ledger, self.record
        write_job(ledger, record, host=host)
        attempt = ledger.begin_attempt(record.id, host=host, epoch=1)
        for state in (JobState.DEPLOYING, JobState.RUNNING):
            ledger.append_event(record.id, state, attempt=attempt, epoch=1)
        self.gang = GangObjects.of_attempt(self.store, record.project_id, record.id, attempt)  # pyright: ignore[reportArgumentType]

    def open_live(self) -> LiveLogs:
        store: Any = self.store
        return LiveLogs(store, self.record, self.folder / "here", clock=lambda: self.now)


def line(number: int) -> bytes:
    return format_line(number, f"line {number}")


@pytest.mark.parametrize(
    ("substrate", "is_here", "is_published"),
    [("local", True, False), ("local", False, True), ("kubernetes", True, True)],
)
def test_where_logs_are_read(
    tmp_path: Path, substrate: str, is_here: bool, is_published: bool
) -> None:
    reader = Reader(tmp_path, substrate)
    reader.begin(host_id(tmp_path / "here") if is_here else BOX)
    reader.gang.rank(0).write_log(line(1), offset=0)
    nodes = reader.open_live().list_nodes(reader.ledger.list_attempts(reader.record.id))
    assert [isinstance(one, PublishedLog) for one in nodes] == [True] * is_published
    assert reader.gang.requests.list_pending().reader_mark > 0 if is_published else True


def test_a_reader_marks_the_job_seldom_and_lists_it_once_a_second(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.begin(BOX)
    reader.gang.rank(0).write_log(line(1), offset=0)
    live, attempts = reader.open_live(), reader.ledger.list_attempts(reader.record.id)
    reader.store.calls.clear()
    for _ in range(50):
        live.list_nodes(attempts)
    assert reader.store.calls == {"put": 1, "list": 1}, f"within {REFRESH_INTERVAL} s"
    reader.now += MARK_INTERVAL
    live.list_nodes(attempts)
    assert reader.store.calls["put"] == 2


def test_lines_are_followed_through_an_outage(tmp_path: Path) -> None:
    """Every line once, in order; the outage is told of once."""
    reader = Reader(tmp_path)
    reader.begin(BOX)
    data, seen, outages = b"", list[str](), list[StoreError]()
    live = reader.open_live()
    logs = JobLogs(reader.ledger, reader.record, list_live=live.list_nodes)
    for number, one in enumerate(
        follow_lines(logs, sleep=lambda _: None, on_outage=outages.append)
    ):
        if one is not None:
            seen.append(one.line.message)
            if len(seen) == 12:
                break
            continue
        reader.store.broken = 5 <= number < 12
        if not reader.store.broken:
            data += line(number)
            reader.gang.rank(0).write_log(data, offset=0)
            live._gangs.clear()  # as if a second had passed
    assert seen == [one.decode().split(" ", 1)[1].strip() for one in data.splitlines()][:12]
    assert len(outages) == 1


def test_an_archiver_notices_an_outage(tmp_path: Path) -> None:
    """Else the archived log would be a part of what was published."""
    reader = Reader(tmp_path)
    reader.begin(BOX)
    reader.gang.rank(0).write_log(line(1), offset=0)
    store: Any = reader.store
    [log] = list_published_logs(store, reader.record, 0)
    reader.store.broken = True
    with pytest.raises(StoreError):
        log.read_log(offset=0, limit=99)


def test_a_log_is_read_although_the_time_is_over_before_it(tmp_path: Path) -> None:
    """As where a bucket takes longer to list than a reader may take for one pass."""
    reader = Reader(tmp_path)
    reader.begin(BOX)
    for rank in (0, 1):
        reader.gang.rank(rank).write_log(line(rank), offset=0)
    logs = JobLogs(reader.ledger, reader.record, list_live=reader.open_live().list_nodes)
    assert {one.line.rank for one in logs.read_new(max_seconds=-1.0)} >= {0, 1}
