"""What a node in a cluster and its watchers tell each other, in a folder and in a bucket's API."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import ObjectExists, StoreError
from prefect_bt.ledger.node_objects import (
    REFRESH_INTERVAL,
    GangObjects,
    GangRecord,
)
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.object_store import open_store

RECORD = GangRecord("prefect-bt-abc1234-0", "team", "ctx", "https://api", 2, 17.0)
DONE = NodeStatus(0, NodePhase.DONE, exit_code=3)


class Breakable:
    """A store that can be told to fail; `calls` counts each verb, `deleted` is in order."""

    def __init__(self, store: Any) -> None:
        self.store, self.broken, self.calls = store, False, dict[str, int]()
        self.deleted: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if self.broken:
                raise StoreError("It is away.", url="test://", next_step="Wait.")
            self.calls[verb] = self.calls.get(verb, 0) + 1
            if verb == "delete":
                self.deleted.append(given[0])
            return getattr(self.store, verb)(*given, **named)

        return call


class Clock:
    """A watcher's clock, one that the test winds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_interval(self) -> None:
        self.now += REFRESH_INTERVAL


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Breakable:
    return Breakable(open_store("memory://" if request.param == "memory" else str(tmp_path)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gang(store: Breakable, clock: Clock) -> GangObjects:
    return GangObjects(store, "jobs/abc1234/nodes/0001", clock=clock)


def keys(store: Breakable, prefix: str = "jobs") -> list[str]:
    return [info.key for info in store.store.list(prefix)]


# -- statuses -------------------------------------------------------------------------------


def test_only_the_newest_status_stays(gang: GangObjects, store: Breakable, clock: Clock) -> None:
    assert gang.read_status(0) is None
    for number, phase in enumerate(NodePhase):
        gang.rank(0).write_status(NodeStatus(0, phase), number)
        clock.pass_interval()
        assert gang.read_status(0) == NodeStatus(0, phase)
    assert keys(store) == ["jobs/abc1234/nodes/0001/rank-0/status-000000005.json"]


def test_one_listing_serves_every_rank(gang: GangObjects, store: Breakable, clock: Clock) -> None:
    for rank in range(3):
        gang.rank(rank).write_status(NodeStatus(rank), 0)
    assert [gang.read_status(rank).rank for rank in range(3)] == [0, 1, 2]
    assert (store.calls["list"], store.calls["get"]) == (1, 3)
    gang.rank(1).write_status(DONE, 1)
    assert gang.read_status(1) == NodeStatus(1), "as it was at the last listing"
    assert gang.read_latest_status(1) == DONE
    clock.pass_interval()
    gang.read_status(0)
    assert store.calls["get"] == 4, "only what is new is read"


def test_a_status_between_two_objects_is_read_as_the_newer_one(gang: GangObjects) -> None:
    """A writer that was killed between writing the new one and deleting the old one."""
    rank = gang.rank(0)
    rank.store.put(rank.status_key(9), b'{"rank": 0, "phase": "staging"}')
    rank.write_status(DONE, 10)
    rank.store.put(rank.status_key(9), b'{"rank": 0, "phase": "staging"}')
    assert gang.read_status(0) == DONE
    assert rank.count_statuses() == 11


def test_a_damaged_status_keeps_the_one_before(gang: GangObjects, clock: Clock) -> None:
    rank = gang.rank(0)
    rank.write_status(NodeStatus(0, NodePhase.RUNNING), 0)
    assert gang.read_status(0).phase is NodePhase.RUNNING
    rank.store.put(rank.status_key(1), b'{"rank"')
    clock.pass_interval()
    assert gang.read_status(0).phase is NodePhase.RUNNING
    rank.write_status(DONE, 1)
    clock.pass_interval()
    assert gang.read_status(0) == DONE


def test_ranks_and_attempts_are_not_taken_for_each_other(store: Breakable) -> None:
    first, tenth = (GangObjects.of_attempt(store, "p", "abc1234", n) for n in (1, 10))
    first.rank(1).write_status(NodeStatus(1), 0)
    first.rank(10).write_status(NodeStatus(10), 4)
    tenth.rank(1).write_status(DONE, 0)
    assert first.rank(1).count_statuses() == 1
    assert (first.read_status(1), first.read_status(10)) == (NodeStatus(1), NodeStatus(10))
    first.delete()
    assert tenth.read_status(1) == DONE


def test_an_outage_keeps_known_statuses(gang: GangObjects, store: Breakable, clock: Clock) -> None:
    gang.rank(0).write_status(NodeStatus(0, NodePhase.RUNNING), 0)
    gang.rank(0).write_log(b"line\n", offset=0)
    assert gang.read_status(0).phase is NodePhase.RUNNING
    store.broken = True
    clock.pass_interval()
    assert gang.read_status(0).phase is NodePhase.RUNNING
    with pytest.raises(StoreError):
        gang.read_log(0, offset=0, limit=9)
    with pytest.raises(StoreError):
        gang.read_latest_status(0)
    store.broken = False
    assert gang.read_log(0, offset=0, limit=9) == b"line\n", "and is not forgotten"
    assert gang.log_size(0) == 5


# -- records, requests, deletion ------------------------------------------------------------


def test_a_gang_is_recorded_once(gang: GangObjects) -> None:
    assert gang.read_record() is None
    gang.create_record(RECORD)
    assert gang.read_record() == RECORD
    with pytest.raises(ObjectExists):
        gang.create_record(replace(RECORD, name="another"))
    assert gang.read_record() == RECORD


def test_a_request_is_replaced(gang: GangObjects) -> None:
    requests = gang.requests
    assert requests.read(1) == StopRequest()
    for request in (StopRequest("stopped", grace=2.5), StopRequest("stopped", force=True)):
        requests.write(1, request)
        assert requests.read(1) == request
    assert requests.read(0) == StopRequest()
    assert gang.read_status(1) is None
    assert (gang.has_request(1), gang.has_request(0)) == (True, False)
    assert GangObjects(gang.store, "jobs/abc1234/nodes/0002").requests.read(1) == StopRequest()
    requests.store.put("jobs/abc1234/nodes/requests/0001-rank-1.json", b"{")
    assert requests.read(1) == StopRequest(), "a damaged one asks for nothing"


def test_a_gang_knows_how_many_of_it_are_ready_and_what_it_waits_for(gang: GangObjects) -> None:
    gang.create_record(RECORD)
    assert (gang.count_ready(), gang.read_waiting()) == (0, "")
    for rank in (0, 11, 11):
        gang.rank(rank).write_ready()
        gang.rank(rank).write_log(b"is /ready", offset=0)
    gang.write_waiting("rank 1: no machine")
    assert (gang.count_ready(), gang.read_waiting()) == (2, "rank 1: no machine")
    assert gang.read_status(0) is None, "none of it is a status"


def test_deletion_takes_all_and_the_record_last(gang: GangObjects, store: Breakable) -> None:
    gang.create_record(RECORD)
    gang.rank(0).write_status(DONE, 0)
    gang.rank(0).write_log(b"a\n", offset=0)
    gang.requests.write(1, StopRequest("stopped"))
    assert gang.read_status(0) == DONE
    gang.delete()
    assert keys(store) == []
    assert store.deleted[-1] == f"{gang.prefix}/gang.json"
    assert gang.read_log(0, offset=0, limit=9) == b""
    gang.delete()
