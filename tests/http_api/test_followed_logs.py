"""Many clients follow the log of a running job."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.job_service import log_reader
from prefect_bt.job_service.log_reader import JobLogReader, LogWindow
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.line_format import format_line
from prefect_bt.logs.live_logs import LiveLogs

from .log_sites import LogSite, Tail, own, stamped


class LiveNode:
    """A node whose log grows in memory. `reads` counts its reads."""

    def __init__(self, rank: int = 0) -> None:
        self.attempt, self.rank, self.data, self.reads = 0, rank, bytearray(), 0

    def log_size(self) -> int:
        return len(self.data)

    def read_log(self, *, offset: int, limit: int) -> bytes:
        self.reads += 1
        return bytes(self.data[offset : offset + limit])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LogSite]:
    with LogSite(tmp_path).serving() as site:
        yield site


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[LiveNode]:
    """The running nodes of every job."""
    nodes = [LiveNode(0), LiveNode(1)]
    monkeypatch.setattr(LiveLogs, "list_nodes", lambda *_: nodes)
    return nodes


def test_fifty_clients_follow_a_job_that_writes(site: LogSite, nodes: list[LiveNode]):
    record = site.job()
    site.begin(record)
    tails = [Tail(site, record) for _ in range(50)]
    written = threading.Event()

    def write() -> None:
        for i in range(2000):
            for node in nodes:
                node.data += format_line(time.time_ns(), f"line {i} of {node.rank}")
            time.sleep(0.0005)
        site.at = time.time()
        for node in nodes:
            site.archive(record, bytes(node.data), rank=node.rank)
        site.end(record)
        written.set()

    def follow(tail: Tail) -> None:
        while not written.is_set():
            tail.poll()
            time.sleep(0.4)
        tail.poll()

    threads = [threading.Thread(target=follow, args=[tail]) for tail in tails]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tail in tails:
        for rank in (0, 1):
            lines = [line["message"] for line in tail.lines if line["rank"] == rank]
            assert lines == [f"line {i} of {rank}" for i in range(2000)]
        assert tail.lines[-1]["message"] == "Job completed."
    assert max(node.reads for node in nodes) < 60


@pytest.mark.parametrize("behind", [30, 90, 3600])
def test_lines_that_come_late_reach_those_who_follow(site, nodes: list[LiveNode], behind: int):
    record = site.job(ago=7200)
    site.begin(record)
    tail = Tail(site, record)
    tail.poll()
    nodes[1].data += stamped([time.time() - behind], "published late {}".format)
    time.sleep(log_reader.READ_INTERVAL)
    tail.poll()
    assert own(tail.lines) == ["published late 0"]


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.STOPPED])
def test_last_lines_are_there_when_the_state_is_terminal(site, nodes: list[LiveNode], state):
    record = site.job()
    site.begin(record)
    assert own(site.logs(record)) == []
    nodes[0].data += stamped([time.time()], "last words {}".format) + b"without an end"
    site.archive(record, bytes(nodes[0].data))
    site.at = time.time()
    site.end(record, state=state)
    lines = site.logs(record)  # at once: the client does not come again
    assert own(lines) == ["without an end", "last words 0"]
    assert lines[0]["message"].startswith("Job ")


def test_page_by_page_reader_of_a_running_job_gets_what_there_is(site, nodes: list[LiveNode]):
    record = site.job()
    site.begin(record)
    for i in range(30):
        nodes[i % 2].data += stamped([time.time() + i / 100], f"line {i} {{}}".format)
    assert len(own(site.read_pages(record, limit=4))) == 30
    nodes[0].data += stamped([time.time() + 1])
    time.sleep(log_reader.READ_INTERVAL)
    assert len(own(site.read_pages(record, limit=4))) == 31


def test_deleted_job_is_unknown(site: LogSite, nodes: list[LiveNode]):
    record = site.job()
    site.logs(record)
    for info in site.ledger.store.list(""):
        if record.id in info.key:
            site.ledger.store.delete(info.key)
    assert site.post(record).status_code == 404


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    limit=st.integers(1, 9),
    kept=st.integers(1, 70),
    ended=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_pages_have_every_line_once(tmp_path_factory, steps, limit, kept, ended):
    """`steps`: half milliseconds from one line to the next. `kept`: lines that are kept."""
    site = LogSite(tmp_path_factory.mktemp("site"), at=1_700_000_000.0)
    record = site.job(ago=100)
    site.begin(record)
    start = int(site.at * 1000)
    at, data = start * 10**6, [bytearray(), bytearray()]
    for i, step in enumerate(steps):
        at += step * 500_000
        data[i % 2] += format_line(at + i, f"line {i}")
    for rank in range(2):
        site.archive(record, bytes(data[rank]), rank=rank)
    if ended:
        site.end(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "MAX_KEPT_LINES", kept)
        patch.setattr(log_reader, "MAX_PAGE_LINES", kept)
        reader, found = JobLogReader(site.ledger, record, tmp_path_factory.getbasetemp()), []
        while page := reader.read(LogWindow(start=start, ascending=True, limit=limit)):
            lines = [json.loads(one) for one in page]
            found += lines
            start = int(lines[-1]["timestamp"]) // 10**6 + 1
    assert sorted(own(found)) == sorted(f"line {i}" for i in range(len(steps)))
    stamps = [int(line["timestamp"]) for line in found]
    assert stamps == sorted(stamps)
