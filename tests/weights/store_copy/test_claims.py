"""One holder at a time: who gets a claim, who is heard, who is overtaken."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefect_bt.object_store import open_store
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.weights.store_copy.claim_holders import get_current_holder
from prefect_bt.weights.store_copy.claims import Claimant, ClaimTimings
from prefect_bt.weights.store_copy.copies import claims_prefix
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.faulty import FaultyServer, LoseAnswer
from tests.weights.claiming import (
    NAME,
    PATIENT,
    Clock,
    Interposed,
    claims,
    documents,
    meter,
    say,
    taken,
    until,
)

pytestmark = pytest.mark.usefixtures("given_back")


def test_one_holds_until_it_gives_back(store):
    first, second = claims(store), claims(store)
    held = first.try_acquire()
    assert held is not None
    assert second.try_acquire() is None
    assert first.try_acquire() is None
    held.release()
    held.release()
    assert not held.lost
    with taken(second) as next_one:
        assert next_one is not None
        assert documents(store) == ["2.json"]
        assert first.try_acquire() is None
    assert claims(store).try_acquire() is not None


def test_one_of_many_takers_wins(store):
    everyone = [claims(store) for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            held = [claim for claim in pool.map(Claimant.try_acquire, everyone) if claim]
            assert len(held) == 1
            held[0].release()


def test_what_a_holder_says_is_heard(store):
    counts = meter()
    counts.set_totals(items=3, size=100)
    with taken(Claimant(store, NAME, get_progress=counts.snapshot, timings=PATIENT)):
        waiter = claims(store)
        assert waiter.try_acquire() is None
        assert waiter.current_record.holder == get_current_holder()
        counts.add_transferred(40)
        counts.add_items()
        until(lambda: waiter.try_acquire() is None and waiter.current_record.bytes_done == 40)
        found = waiter.current_record
        assert (found.files_done, found.files_total, found.bytes_total) == (1, 3, 100)


def test_silence_is_counted_by_the_waiters_clock():
    store, clock = open_store("memory://"), Clock()
    waiter = claims(store, ClaimTimings(renew_interval=3600.0, expire_after=30.0), clock=clock)
    say(store, 4, holder={"host": "far", "pid": 1}, token="t", beats=1)
    assert waiter.try_acquire() is None
    clock.now += 29
    assert waiter.try_acquire() is None
    say(store, 4, holder={"host": "far", "pid": 1}, token="t", beats=2)
    clock.now += 29
    assert waiter.try_acquire() is None
    clock.now += 29
    assert waiter.try_acquire() is None
    clock.now += 2
    with taken(waiter) as held:
        assert held is not None
        assert documents(store) == ["5.json"]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"[]", b"{}", b'{"holder": null, "token": "t"}'],
)
def test_a_claim_that_nobody_can_read_is_one_until_it_is_silent_too_long(garbage):
    store, clock = open_store("memory://"), Clock()
    store.put(f"{claims_prefix(NAME)}/1.json", garbage)
    store.put(f"{claims_prefix(NAME)}/notes.txt", b"")
    waiter = claims(store, ClaimTimings(renew_interval=3600.0, expire_after=30.0), clock=clock)
    assert waiter.try_acquire() is None
    assert waiter.current_record is None
    clock.now += 31
    taken(waiter).release()


def test_who_was_overtaken_finds_out_and_disturbs_nobody(store):
    slow = claims(store).try_acquire()
    assert slow is not None
    say(store, 2, holder={"host": "far", "pid": 1}, token="t", beats=7)
    until(lambda: slow.lost)
    slow.release()
    waiter = claims(store)
    assert waiter.try_acquire() is None
    assert waiter.current_record.beats == 7


def test_numbers_that_began_again_are_anothers(store):
    """The mirror was deleted, and somebody else has taken the number that we have."""
    slow = claims(store).try_acquire()
    assert slow is not None
    say(store, 1, holder={"host": "far", "pid": 1}, token="another's", beats=7)
    until(lambda: slow.lost)
    slow.release()
    assert json.loads(store.get(f"{claims_prefix(NAME)}/1.json"))["beats"] == 7


def test_a_number_that_is_free_again_is_not_taken(tmp_path):
    """We looked, then two others took and gave back: our number was used and removed."""
    store, others = Interposed(tmp_path), []

    def meanwhile():
        plain = DiskStore(tmp_path)
        claims(plain).try_acquire().release()
        others.append(claims(plain).try_acquire())

    store.before = meanwhile
    assert claims(store).try_acquire() is None
    assert documents(store) == ["2.json"]
    until(lambda: json.loads(store.get(f"{claims_prefix(NAME)}/2.json"))["beats"] > 1)
    assert not others[0].lost
    others[0].release()


def test_a_store_that_fails_between_two_beats_ends_nothing(tmp_path):
    store = Interposed(tmp_path)
    with taken(claims(store)) as held:
        store.broken = "weights"
        until(lambda: store.failed > 2)
        store.broken = None
        plain = claims(DiskStore(tmp_path))
        assert plain.try_acquire() is None
        beats = plain.current_record.beats
        until(lambda: plain.try_acquire() is None and plain.current_record.beats > beats + 1)
        assert not held.lost


def test_giving_back_to_a_store_that_is_away(tmp_path):
    store, clock = Interposed(tmp_path), Clock()
    held = claims(store).try_acquire()
    store.broken = "weights"
    held.release()
    store.broken = None
    waiter = claims(store, ClaimTimings(renew_interval=3600.0, expire_after=30.0), clock=clock)
    assert waiter.try_acquire() is None
    clock.now += 31
    taken(waiter).release()


@pytest.mark.integration
def test_an_answer_that_was_lost_is_no_other_holder(s3, monkeypatch):
    with FaultyServer(s3) as server:
        use(monkeypatch, server.url)
        store = open_store(Bucket(s3).url)
        rule = server.on(LoseAnswer(), method="PUT", path="claims")
        with taken(claims(store)) as held:
            assert rule.hits == 1
            assert held is not None
