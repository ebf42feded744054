"""Many clients follow the log of a running job."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.errors import StoreError
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.job_service import job_readers, log_reader
from prefect_bt.job_service.job_readers import JobReader, JobReaders
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
        for i in range(500):
            for node in nodes:
                node.data += format_line(time.time_ns(), f"line {i} of {node.rank}")
            time.sleep(0.002)
        site.at = time.time()
        for node in nodes:
            site.archive(record, bytes(node.data), rank=node.rank)
        site.end(record)
        written.set()

    def follow(tail: Tail) -> None:
        while not written.is_set():
            tail.poll()
            time.sleep(0.6)
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
            assert lines == [f"line {i} of {rank}" for i in range(500)]
        assert tail.lines[-1]["message"] == "Job completed."
    assert max(node.reads for node in nodes) < 60


@pytest.mark.parametrize("behind", [30, 90, 3600])
def test_late_lines_reach_following_clients(site, nodes: list[LiveNode], behind: int):
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
@settings(max_examples=30, deadline=None)
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
            lines = [json.loads(one.document) for one in page]
            found += lines
            start = int(lines[-1]["timestamp"]) // 10**6 + 1
    assert sorted(own(found)) == sorted(f"line {i}" for i in range(len(steps)))
    stamps = [int(line["timestamp"]) for line in found]
    assert stamps == sorted(stamps)


def test_no_line_is_lost_when_the_store_did_not_answer(site, nodes: list[LiveNode], monkeypatch):
    monkeypatch.setattr("prefect_bt.http_api.middleware._PATIENCE", 0.0)
    record = site.job()
    site.begin(record)
    site.logs(record)
    nodes[0].data += stamped([time.time()], "first {}".format)
    nodes[1].data += stamped([time.time() + 1], "second {}".format)
    with monkeypatch.context() as patch:
        patch.setattr(nodes[1], "read_log", refuse)
        time.sleep(log_reader.READ_INTERVAL)
        answer = site.post(record)
        assert answer.status_code == 503
        assert "no answer" in answer.json()["message"]
    assert own(site.logs(record)) == ["second 0", "first 0"]


def refuse(**_: int) -> bytes:
    raise StoreError("The store gave no answer.")


def test_retried_job_is_read_on(site: LogSite, nodes: list[LiveNode]):
    record = site.job(ago=60)
    site.begin(record)
    nodes[0].data += stamped([site.at])
    site.archive(record, bytes(nodes[0].data))
    site.end(record, state=JobState.FAILED)
    tail = Tail(site, record)
    tail.poll()
    nodes[0] = LiveNode(0)
    nodes[0].attempt = 1
    site.at = time.time()
    site.ledger.append_event(record.id, JobState.CREATED, attempt=1, message="Again.")
    site.begin(record)
    nodes[0].data += stamped([site.at], "line {} again".format)
    tail.poll()
    assert own(tail.lines) == ["line 0", "line 0 again"]


@pytest.mark.parametrize("bound", ["MAX_JOBS", "MAX_KEPT_BYTES"])
def test_readers_of_other_jobs_are_forgotten(tmp_path, monkeypatch, bound: str):
    monkeypatch.setattr(job_readers, bound, 2)
    site = LogSite(tmp_path)
    readers = JobReaders(site.ledger, tmp_path)
    jobs = [site.job() for _ in range(3)]
    found = list[JobReader]()
    for job in jobs:
        found.append(readers.get(job))
        found[-1].log.read(LogWindow())
    assert readers.get(jobs[2]) is found[2]
    assert readers.get(jobs[0]) is not found[0]


@pytest.mark.slow
@pytest.mark.extended
def test_memory_of_a_server_that_many_follow_is_bounded(tmp_path: Path):
    """20,000 lines of a node on this machine, and 50 clients."""
    site = LogSite(tmp_path)
    record = site.job()
    site.begin(record)
    folder = JobFolder(site.site.settings.state_dir.absolute(), record.id).node_folder(0, 0)
    folder.log.parent.mkdir(parents=True)
    with site.serving_in_a_process() as server:
        tails = [Tail(site, record) for _ in range(50)]
        for _ in range(2):
            for tail in tails:
                tail.poll()
            with folder.log.open("ab") as log:
                log.writelines(
                    format_line(time.time_ns(), f"line {i} {'x' * 99}") for i in range(10_000)
                )
            time.sleep(log_reader.READ_INTERVAL)
        tails[0].poll()
        assert len(own(tails[0].lines)) == 20_000
        peak = Path(f"/proc/{server.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(peak) < 300_000
