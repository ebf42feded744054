"""Single flight across hosts: one fetches, the others get what it published, and none waits on."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from prefect_bt.errors import ObjectExists, StoreError
from prefect_bt.object_store import open_store
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.text.progress import Phase
from prefect_bt.weights.manifest import WeightsManifest, dump_manifest
from prefect_bt.weights.store_copy.claims import ClaimTimings
from prefect_bt.weights.store_copy.copies import StoreMirror, manifest_key
from prefect_bt.weights.store_copy.single_flight import single_flight
from tests.weights.claiming import HOLDER, NAME, PATIENT, Interposed, claims, meter, taken, until

pytestmark = pytest.mark.usefixtures("given_back")

MANIFEST = WeightsManifest("hf://o/r", "k1", "r1", (), 0.0)

FLIER = """
import os, sys, time
from pathlib import Path
from prefect_bt.object_store import open_store
from prefect_bt.weights.store_copy.single_flight import (single_flight)
from prefect_bt.weights.store_copy.claims import (ClaimTimings)
from prefect_bt.weights.manifest import WeightsManifest, dump_manifest
from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.store_copy.copies import StoreMirror, manifest_key
url, flights, last = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
store = open_store(url)
times = ClaimTimings(renew_interval=0.2, expire_after=3600.0, poll_interval=0.1)
ask = lambda: StoreMirror(store).find_manifest("k1-r1")
with single_flight(store, "k1-r1", ProgressMeter("s", None), ask, timings=times) as found:
    if found is None:
        alone = flights / "alone"
        os.close(os.open(alone, os.O_CREAT | os.O_EXCL))
        (flights / f"flight-{os.getpid()}").touch()
        print("flies", flush=True)
        time.sleep(0.3)
        alone.unlink()
        if last == "fails":
            raise SystemExit("failed")
        if last == "hangs":
            time.sleep(3600)
        manifest = WeightsManifest("s", "k1", "r1", (), 0.0)
        store.create(manifest_key(manifest.name), dump_manifest(manifest))
"""


def publish(store):
    with suppress(ObjectExists):
        store.create(manifest_key(NAME), dump_manifest(MANIFEST))


def ask(store):
    return lambda: StoreMirror(store).find_manifest(NAME)


def test_one_flies_and_the_others_get_what_it_published(store):
    flights, lock = [], threading.Lock()

    def fly(number):
        with single_flight(store, NAME, meter(), ask(store), timings=PATIENT) as found:
            if found is None:
                assert lock.acquire(blocking=False)
                flights.append(number)
                time.sleep(0.05)
                publish(store)
                lock.release()
                return MANIFEST
            return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fly, range(8))) == [MANIFEST] * 8
    assert len(flights) == 1


def test_one_that_fails_leaves_it_to_the_next(store):
    failed, alone, lock = [], [], threading.Lock()

    def fly(number):
        with (
            suppress(AssertionError),
            single_flight(store, NAME, meter(), ask(store), timings=PATIENT) as found,
        ):
            if found is None:
                alone.append(lock.acquire(blocking=False))
                lock.release()
                if len(failed) >= 3:
                    publish(store)
                published = ask(store)()
                if not published:
                    failed.append(number)  # before the next one has the claim
                assert published, "failed"

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(fly, range(6)))
    assert len(failed) == 3
    assert all(alone)
    assert ask(store)() == MANIFEST


@pytest.mark.slow
@pytest.mark.parametrize("first", ["fails", "hangs", "goes well"])
def test_processes_fly_one_after_another(url, start, tmp_path, first):
    flights = tmp_path / "flights"
    flights.mkdir()
    leader = start(FLIER, url, flights, first)
    assert leader.stdout.readline() == "flies\n"
    others = [start(FLIER, url, flights, "goes well") for _ in range(3)]
    if first == "hangs":
        until(lambda: not (flights / "alone").exists())
        leader.kill()
    assert [other.wait(200) for other in others] == [0, 0, 0]
    assert ask(open_store(url))() is not None
    assert len(list(flights.glob("flight-*"))) == (1 if first == "goes well" else 2)


def test_who_waits_shows_how_far_the_other_is(url, start):
    leader = start(HOLDER, url, "elsewhere")
    assert leader.stdout.readline() == "held\n"
    store, counts, seen = open_store(url), meter(), []
    counts.set_totals(items=2, size=9_900_000_000)
    looks = iter([None, None, None, MANIFEST])

    def asked():
        seen.append(counts.snapshot())
        return next(looks)

    with single_flight(store, NAME, counts, asked, timings=PATIENT) as found:
        assert found == MANIFEST
    assert seen[-1].phase is Phase.WAITING
    assert seen[-1].note == "host far fetches it: 3.1 of 9.9 GB"
    assert seen[-1].bytes_done == 3_100_000_000
    after = counts.snapshot()
    assert (after.note, after.bytes_done, after.items_done) == ("", 0, 0)


def test_what_is_published_needs_no_claim(store):
    publish(store)
    with single_flight(store, NAME, meter(), ask(store), timings=PATIENT) as found:
        assert found == MANIFEST
        taken(claims(store)).release()


def test_a_store_that_is_away_says_so_at_once(tmp_path):
    store = Interposed(tmp_path)
    store.broken = "weights"
    with (
        pytest.raises(StoreError, match="away"),
        single_flight(store, NAME, meter(), ask(store), timings=PATIENT),
    ):
        raise AssertionError
    store.broken = "manifests"
    with (
        pytest.raises(StoreError, match="away"),
        single_flight(store, NAME, meter(), ask(store), timings=PATIENT),
    ):
        raise AssertionError
    store.broken = None
    assert claims(store).try_acquire() is not None


def test_a_store_that_is_away_for_a_moment_ends_no_waiting(tmp_path):
    """Also when it fails right after we got the claim: that is given back, and taken again."""
    store = Interposed(tmp_path)
    leader = claims(DiskStore(tmp_path)).try_acquire()
    asked = []

    def manifest():
        asked.append(None)
        if len(asked) == 2:
            leader.release()
        if len(asked) in (3, 4):
            raise StoreError("The store is away.")

    with single_flight(store, NAME, meter(), manifest, timings=PATIENT) as found:
        assert found is None
        assert claims(DiskStore(tmp_path)).try_acquire() is None
    assert len(asked) >= 5


def test_a_store_that_stays_away_ends_the_waiting(tmp_path):
    store = Interposed(tmp_path)
    leader = claims(DiskStore(tmp_path), ClaimTimings(renew_interval=0.05)).try_acquire()
    asked = []

    def manifest():
        asked.append(None)
        store.broken = "weights"

    with (
        pytest.raises(StoreError, match="away"),
        single_flight(
            store,
            NAME,
            meter(),
            manifest,
            timings=ClaimTimings(renew_interval=0.05, expire_after=0.5, poll_interval=0.05),
        ),
    ):
        raise AssertionError
    assert len(asked) == 1
    leader.release()


def test_told_to_stop_while_it_waits(store):
    stop = threading.Event()
    looks = []

    def manifest():
        looks.append(None)
        if len(looks) == 3:
            stop.set()

    with (
        taken(claims(store)),
        single_flight(store, NAME, meter(), manifest, timings=PATIENT, stop=stop) as found,
    ):
        assert found is None
    assert len(looks) == 3
