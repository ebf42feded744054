"""What is published of nodes, when, and what of the requests of others reaches them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefect_bt import codec
from prefect_bt.errors import StoreError
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.node_objects import METRICS, GangObjects
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.ledger.requests import READER, STOP, StopRequest
from prefect_bt.node_agent.publishing.publisher import (
    ANSWER_SECONDS,
    IDLE_INTERVAL,
    MIN_SEGMENT_BYTES,
    READ_INTERVAL,
    READER_SECONDS,
    REQUEST_INTERVAL,
    GangPublisher,
    HostNode,
)
from prefect_bt.object_store import open_store
from tests.ledger.test_node_objects import DONE, Breakable, Clock, keys

STEP = 0.5


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Breakable:
    return Breakable(open_store("memory://" if request.param == "memory" else str(tmp_path)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gang(store: Breakable, clock: Clock) -> GangObjects:
    return GangObjects(store, "jobs/abc1234/nodes/0001", clock=clock)


# -- logs -----------------------------------------------------------------------------------


class Node:
    """A node whose log the test writes, and its publisher."""

    rank = 0

    def __init__(self, objects: GangObjects, clock: Clock) -> None:
        self.log, self.metrics = b"", b""
        self.status = NodeStatus(0, NodePhase.RUNNING)
        self.asked: list[StopRequest] = []
        self.clock, self.store = clock, objects.store
        self.publisher = GangPublisher(objects, lambda: [self], prints=True, clock=clock)

    def observe(self) -> NodeStatus:
        return self.status

    def read_log(self, *, offset: int, limit: int) -> bytes:
        return self.log[offset : offset + limit]

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        return self.metrics[offset : offset + limit]

    def apply_request(self, before: StopRequest, now: StopRequest) -> None:
        self.asked.append(now)

    def publish(self, more: bytes = b"") -> bool:
        self.log += more
        self.publisher._requests_due = 0.0
        return self.publisher.step(soon=True)

    def run(self, seconds: float) -> None:
        """Step as its process does, for so long; every second has a line."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += STEP
            self.log += b"line\n"
            self.publisher.step()

    def wait_published(self, size: int, limit: float = 60.0) -> float:
        """Return the seconds until so much of the log is published."""
        began = self.clock.now
        while sum(size for _, size in segments(self.store)) < size:
            assert self.clock.now - began < limit, "not published"
            self.clock.now += STEP
            self.publisher.step()
        return self.clock.now - began


def read_all(gang: GangObjects, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
    data = b""
    while chunk := gang.read_log(0, offset=offset + len(data), limit=limit):
        assert len(chunk) <= limit
        data += chunk
    return data


def segments(store: Any) -> list[tuple[int, int]]:
    return [
        (int(info.key.rpartition("-")[2]), info.size)
        for info in store.store.list("jobs")
        if "/log-" in info.key
    ]


@pytest.fixture
def node(gang: GangObjects, clock: Clock) -> Node:
    return Node(gang, clock)


def test_a_log_grows_line_by_line(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock, capfd: Any
) -> None:
    for line in (b"one\n", b"two\n", b"thr"):
        assert node.publish(line)
        clock.pass_interval()
        assert read_all(gang) == node.log
        assert len(segments(store)) == 1
    assert read_all(gang, offset=5) == b"wo\nthr"
    assert read_all(gang, offset=11) == read_all(gang, offset=99) == b""
    assert capfd.readouterr().out == "one\ntwo\nthr", "for kubectl logs"


def test_a_long_log_is_in_few_segments_and_reads_the_same_from_anywhere(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock
) -> None:
    whole = b"".join(b"line %d\n" % n for n in range(400_000))
    step = MIN_SEGMENT_BYTES // 2 + 7
    for begin in range(0, len(whole), step):
        node.publish(whole[begin : begin + step])
    clock.pass_interval()
    found = segments(store)
    assert sum(size for _, size in found) == len(whole)
    assert [b for b, _ in found[1:]] == [b + size for b, size in found[:-1]], "without a gap"
    sizes = [size for _, size in found[:-1]]
    assert sizes == sorted(sizes)
    assert sizes[0] == MIN_SEGMENT_BYTES < sizes[-1]
    assert read_all(gang) == whole
    for offset in (found[1][0] - 1, found[1][0], found[1][0] + 1, len(whole) - 3):
        assert read_all(gang, offset=offset) == whole[offset:]
    assert gang.read_log(0, offset=found[2][0] - 2, limit=100) == whole[found[2][0] - 2 :][:2]


def test_what_the_store_did_not_take_comes_later(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock
) -> None:
    assert node.publish(b"one\n")
    store.broken = True
    assert not node.publish(b"x" * MIN_SEGMENT_BYTES)
    assert not node.publish(b"two\n")
    store.broken = False
    node.status, node.metrics = DONE, b"sample"
    node.publisher.finish()
    clock.pass_interval()
    assert read_all(gang) == node.log
    assert gang.read_log(0, offset=2, limit=9, file=METRICS) == b"mple"
    assert gang.read_status(0) == DONE


def test_metrics_are_published_seldom_and_soon_for_a_reader(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock
) -> None:
    writes = list[float]()

    def run(seconds: float) -> None:
        until = clock.now + seconds
        while clock.now < until:
            node.metrics += b"s" * 60
            before = gang.rank(0).list_segments(METRICS)
            node.publisher.step()
            if gang.rank(0).list_segments(METRICS) != before:
                writes.append(clock.now)
            clock.now += 5

    run(600)
    assert len(writes) <= 6, "every few minutes"
    gang.requests.mark(READER)
    writes.clear()
    run(20)
    assert len(writes) >= 2
    assert gang.rank(0).list_segments(METRICS)[0].size >= len(node.metrics) - 120


def test_requests_reach_the_node_once(gang: GangObjects, node: Node) -> None:
    asked = StopRequest("stopped")
    gang.requests.write(0, asked)
    node.publish()
    node.publish()
    assert node.asked == [asked]
    gang.requests.write(0, replace(asked, force=True))
    node.publish()
    assert node.asked == [asked, replace(asked, force=True)]


def test_a_second_container_goes_on_after_the_statuses_of_the_first(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock
) -> None:
    """The init container's last status is not taken for a newer one."""
    for phase in (NodePhase.STAGING, NodePhase.RUNNING):
        node.status = NodeStatus(0, phase)
        node.publish()
    second = Node(gang, clock)
    second.status = DONE
    second.publish()
    clock.pass_interval()
    assert gang.read_status(0) == DONE
    assert [key for key in keys(store) if "status" in key] == [gang.rank(0).status_key(2)]


# -- when -----------------------------------------------------------------------------------


def test_what_no_process_reads_is_published_seldom(
    gang: GangObjects, store: Breakable, node: Node
) -> None:
    node.run(STEP)
    before = dict(store.calls)
    node.run(300)
    puts = store.calls["put"] - before["put"]
    assert 300 / IDLE_INTERVAL - 1 <= puts <= 300 / IDLE_INTERVAL + 1
    assert store.calls["list"] - before["list"] <= 300 / REQUEST_INTERVAL + 1
    assert store.calls.get("get", 0) == before.get("get", 0)


def test_a_reader_is_served_within_seconds(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock
) -> None:
    node.run(1)
    gang.requests.mark(READER)
    node.log += b"seen\n"
    assert node.wait_published(len(node.log)) <= REQUEST_INTERVAL + STEP
    for _ in range(5):
        node.log += b"next\n"
        assert node.wait_published(len(node.log)) <= READ_INTERVAL + STEP
    node.run(READER_SECONDS)
    node.log += b"unseen\n"
    assert node.wait_published(len(node.log)) > 5 * READ_INTERVAL


def test_a_reader_that_comes_while_the_store_fails_is_served_after_it(
    gang: GangObjects, store: Breakable, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is read, and then the log is not written."""
    node.run(1)
    gang.requests.mark(READER)
    node.log += b"seen\n"
    monkeypatch.setattr(type(store.store), "put", lambda *_: _fail())
    for _ in range(6):
        node.clock.now += STEP
        node.publisher.step()
    monkeypatch.undo()
    assert node.wait_published(len(node.log)) <= STEP


def _fail() -> None:
    raise StoreError("It is away.", url="test://", next_step="Wait.")


@pytest.mark.parametrize("change", ["phase", "reason"])
def test_a_change_of_the_node_is_published_at_once(
    gang: GangObjects, node: Node, clock: Clock, change: str
) -> None:
    node.run(3)
    node.log += b"last\n"
    phase = NodePhase.FLUSHING if change == "phase" else NodePhase.RUNNING
    node.status = NodeStatus(0, phase, reason="" if change == "phase" else "stopped")
    clock.now += STEP
    node.publisher.step()
    clock.pass_interval()
    assert gang.read_status(0) == node.status
    assert read_all(gang) == node.log


def test_a_store_that_failed_is_tried_again_at_the_next_step(
    store: Breakable, node: Node, clock: Clock
) -> None:
    node.run(1)
    clock.now += IDLE_INTERVAL
    store.broken = True
    assert not node.publisher.step()
    store.broken = False
    node.log += b"more\n"
    assert node.wait_published(len(node.log)) <= REQUEST_INTERVAL


# -- one publisher after another ------------------------------------------------------------


@pytest.mark.parametrize("size", [100, MIN_SEGMENT_BYTES, MIN_SEGMENT_BYTES + 100])
@pytest.mark.parametrize("dies", ["after all", "after the log", "between the statuses"])
def test_the_next_publisher_continues_without_a_gap_or_a_repetition(
    gang: GangObjects, store: Breakable, node: Node, clock: Clock, size: int, dies: str
) -> None:
    node.publish(b"a" * size)
    if dies == "after the log":
        gang.rank(0).write_log(b"a" * 50 if size == 100 else b"", offset=_last(store))
    elif dies == "between the statuses":
        store.store.put(gang.rank(0).status_key(1), codec.dumps(node.status).encode())
    second = Node(gang, clock)
    second.log, second.status = node.log, NodeStatus(0, NodePhase.FLUSHING)
    second.publish(b"b" * 70)
    second.publish(b"c")
    clock.pass_interval()
    assert read_all(gang) == second.log
    found = segments(store)
    assert [b for b, _ in found[1:]] == [b + size for b, size in found[:-1]]
    assert gang.read_status(0) == second.status


def _last(store: Breakable) -> int:
    return segments(store)[-1][0]


# -- requests -------------------------------------------------------------------------------


def ask_to_stop(gang: GangObjects) -> None:
    gang.store.put(f"{gang.requests.prefix}/{STOP}", codec.dumps(StopRequest(by="me")).encode())


def test_a_stop_that_no_flow_passes_on_reaches_the_node_once(gang: GangObjects, node: Node) -> None:
    node.run(3)
    ask_to_stop(gang)
    node.run(ANSWER_SECONDS - 1)
    assert node.asked == []
    node.run(2 * REQUEST_INTERVAL + 2)
    assert node.asked == [StopRequest("stopped")]
    node.run(3 * ANSWER_SECONDS)
    assert len(node.asked) == 1


def test_a_retry_in_between_takes_the_stop_back(gang: GangObjects, node: Node) -> None:
    ask_to_stop(gang)
    node.run(ANSWER_SECONDS - 3)
    gang.store.delete(f"{gang.requests.prefix}/{STOP}")
    node.run(3)
    ask_to_stop(gang)
    node.run(ANSWER_SECONDS - 1)
    assert node.asked == []


@pytest.mark.parametrize("answer", ["its commands ended", "the flow stops it"])
def test_a_stop_that_was_answered_is_not_repeated(
    gang: GangObjects, node: Node, answer: str
) -> None:
    passed_on = [StopRequest("stopped", grace=5.0)] if answer == "the flow stops it" else []
    ask_to_stop(gang)
    node.run(5)
    for request in passed_on:
        gang.requests.write(0, request)
    if not passed_on:
        node.status = NodeStatus(0, NodePhase.FLUSHING, exit_code=1)
    node.run(3 * ANSWER_SECONDS)
    assert node.asked == passed_on


def test_requests_of_another_attempt_are_ignored(gang: GangObjects, node: Node) -> None:
    for attempt in ("0000", "0002", "0011"):
        other = GangObjects(gang.store, f"jobs/abc1234/nodes/{attempt}")
        other.requests.write(0, StopRequest("stopped"))
    node.run(5)
    assert node.asked == []


def test_commands_are_killed_once_for_each_request(tmp_path: Path) -> None:
    """A request that replaces the kill, or is deleted, asks for no other one."""
    killed = list[int]()

    class Commands(HostNode):
        def _kill_commands(self) -> None:
            killed.append(1)

    node = Commands(HostHandle(JobFolder(tmp_path, "abc1234"), 0, 0))
    kill = StopRequest(kill="1")
    node.apply_request(StopRequest(), kill)
    node.apply_request(kill, StopRequest())
    assert killed == [1]
