"""Leases and queue entries on a real store: no number twice, no decision from old leases."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from prefect_bt.errors import NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.records import Demand, Lease, QueuedJob
from prefect_bt.queue.waiting_jobs import (
    add_waiting_job,
    change_waiting_job,
    list_waiting_jobs,
)
from tests.queue.queued_jobs import queue_job


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_store(str(tmp_path / "store")))


@pytest.fixture
def store(ledger: Ledger) -> Store:
    return ledger.store


def job(name: str = "abc1234", **changes: object) -> QueuedJob:
    base = QueuedJob(name, Demand(2, "H100", 4, 2**33), submitted_at=1000.5, since=1001.25)
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": -7, "spot": True, "run_time": 90.5, "host": "ab12cd34ef56"},
        {"team": "vision / é, =x"},
        {"demand": Demand(1, "GeForce RTX 4090", 1, 1)},
        {"demand": Demand(0, "", 1, 0)},
    ],
)
def test_an_entry_is_read_as_it_was_written(ledger: Ledger, changes: dict[str, object]) -> None:
    waiting = queue_job(ledger, job(**changes))
    assert list_waiting_jobs(ledger.store) == [waiting]
    assert waiting == job(**changes, event=0)


def test_the_order_is_priority_then_age_and_the_newest_priority_counts(ledger: Ledger) -> None:
    store = ledger.store
    for name, priority, at in (("old", 0, 1.0), ("new", 0, 2.0), ("urgent", 5, 3.0)):
        queue_job(ledger, job(name, priority=priority, submitted_at=at))
    assert [one.id for one in list_waiting_jobs(store)] == ["urgent", "old", "new"]
    change_waiting_job(ledger, "new", priority=9)
    # The process that changed it died before it deleted the entry with the old priority.
    add_waiting_job(ledger, job("new", priority=0, submitted_at=2.0, event=0))
    assert [one.id for one in list_waiting_jobs(store)] == ["new", "urgent", "old"]
    with pytest.raises(NotFoundError):
        change_waiting_job(ledger, "unknown", priority=1)


def test_a_foreign_object_in_the_queue_is_ignored(ledger: Ledger) -> None:
    queue_job(ledger, job())
    store = ledger.store
    store.put("queue/waiting/other", b"")
    store.put("queue/waiting/other2/v=2,q=unknown/team-", b"")
    assert [one.id for one in list_waiting_jobs(store)] == ["abc1234"]


def test_a_decision_from_old_leases_is_refused(store: Store) -> None:
    one, other = Leases(store), Leases(store)
    one.read()
    other.read()
    first = one.create(job(), host="a")
    assert first is not None and first.number == 1
    assert other.create(job("def5678"), host="b") is None
    assert other.read() == [first]
    second = other.create(job("def5678"), host="b")
    assert second is not None and second.number == 2


def test_a_number_that_was_used_and_deleted_is_refused(store: Store) -> None:
    slow, other = Leases(store), Leases(store)
    slow.read()
    other.read()
    first = other.create(job("first"), host="b")
    second = other.create(job("second"), host="b")
    assert first is not None and second is not None
    other.release(first)
    assert slow.create(job("third"), host="a") is None
    assert slow.read() == [second]


def test_no_number_is_used_twice_when_leases_end(store: Store) -> None:
    leases = Leases(store)
    leases.read()
    seen: list[int] = []
    for _ in range(5):
        lease = leases.create(job(), host="a")
        assert lease is not None
        seen.append(lease.number)
        leases.release(lease)
        leases.release(lease)
        leases.read()
        leases.prune()
    assert seen == [1, 2, 3, 4, 5]
    assert Leases(store).read() == []
    assert len(list(store.list("queue/leases"))) == 2  # the newest number and its mark


def test_of_racing_machines_each_gets_a_number_of_its_own(store: Store) -> None:
    start = Barrier(8)

    def take(host: int) -> Lease:
        leases = Leases(store)
        start.wait()
        lease = None
        while lease is None:
            leases.read()
            lease = leases.create(job(f"job{host}"), host=str(host))
        return lease

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(take, range(8)))
    assert len({lease.number for lease in got}) == 8
    assert Leases(store).read() == sorted(got, key=lambda lease: lease.number)
