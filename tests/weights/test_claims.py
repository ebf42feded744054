"""Single flight across hosts: one holder at a time, and nobody waits for ever."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from prefect_bt.errors import ObjectExists, StoreError
from prefect_bt.objects import open_store
from prefect_bt.objects.disk import DiskStore
from prefect_bt.weights.claims import Claims, Times, fly_alone
from prefect_bt.weights.holders import Holder, this_process
from prefect_bt.weights.manifest import Manifest, dump_manifest
from prefect_bt.weights.progress import Meter, Phase
from prefect_bt.weights.shared import StoreMirror, claims_folder, manifest_key
from tests.checkpoints.buckets import Bucket, use
from tests.objects.faulty import FaultyServer, LoseAnswer

NAME = "k1-r1"
PATIENT = Times(beat=0.05, dead=3600.0, look=0.05)
"""A holder is dead only where that is known."""
MANIFEST = Manifest("hf://o/r", "k1", "r1", (), 0.0)

HOLDER = """
import sys, time
from prefect_bt.objects import open_store
from prefect_bt.weights import claims
from prefect_bt.weights.holders import Holder
from prefect_bt.weights.progress import Meter
if sys.argv[2] == "elsewhere":
    claims.this_process = lambda: Holder("far", 1, "another machine", "1")
meter = Meter("hf://o/r", None)
meter.expect(files=2, size=9_900_000_000)
meter.moved(3_100_000_000)
times = claims.Times(beat=0.05)
held = claims.Claims(open_store(sys.argv[1]), "k1-r1", says=meter.look, times=times).take()
print("held" if held else "not", flush=True)
time.sleep(3600)
"""

FLIER = """
import os, sys, time
from pathlib import Path
from prefect_bt.objects import open_store
from prefect_bt.weights.claims import Times, fly_alone
from prefect_bt.weights.manifest import Manifest, dump_manifest
from prefect_bt.weights.progress import Meter
from prefect_bt.weights.shared import StoreMirror, manifest_key
url, flights, last = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
store, times = open_store(url), Times(beat=0.2, dead=3600.0, look=0.1)
ask = lambda: StoreMirror(store).manifest("k1-r1")
with fly_alone(store, "k1-r1", Meter("s", None), ask, times=times) as found:
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
        manifest = Manifest("s", "k1", "r1", (), 0.0)
        store.create(manifest_key(manifest.name), dump_manifest(manifest))
"""


@pytest.fixture
def start():
    """Processes that are gone when the test is over."""
    running = []

    def begin(code, *arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def meter():
    return Meter("hf://o/r", None)


def claims(store, times=PATIENT, **given):
    return Claims(store, NAME, says=meter().look, times=times, **given)


def taken(waiter):
    """Who must get it now."""
    held = waiter.take()
    assert held is not None
    return held


def documents(store):
    return [info.key.rpartition("/")[2] for info in store.list(claims_folder(NAME))]


def say(store, number, **document):
    store.put(f"{claims_folder(NAME)}/{number}.json", json.dumps(document).encode())


def until(true):
    end = time.monotonic() + 60
    while not (found := true()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
    return found


# -- one claim ------------------------------------------------------------------------------------


def test_one_holds_until_it_gives_back(store):
    first, second = claims(store), claims(store)
    held = first.take()
    assert held is not None
    assert second.take() is None
    assert first.take() is None
    held.release()
    held.release()
    assert not held.lost
    with taken(second) as next_one:
        assert next_one is not None
        assert documents(store) == ["2.json"]
        assert first.take() is None
    assert claims(store).take() is not None


def test_one_of_many_takers_wins(store):
    everyone = [claims(store) for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            held = [claim for claim in pool.map(Claims.take, everyone) if claim]
            assert len(held) == 1
            held[0].release()


def test_what_a_holder_says_is_heard(store):
    counts = meter()
    counts.expect(files=3, size=100)
    with taken(Claims(store, NAME, says=counts.look, times=PATIENT)):
        waiter = claims(store)
        assert waiter.take() is None
        assert waiter.present.holder == this_process()
        counts.moved(40)
        counts.finished()
        until(lambda: waiter.take() is None and waiter.present.bytes_done == 40)
        found = waiter.present
        assert (found.files_done, found.files_total, found.bytes_total) == (1, 3, 100)


def test_silence_is_counted_by_the_waiters_clock():
    store, clock = open_store("memory://"), Clock()
    waiter = claims(store, Times(beat=3600.0, dead=30.0), clock=clock)
    say(store, 4, holder={"host": "far", "pid": 1}, token="t", beats=1)
    assert waiter.take() is None
    clock.now += 29
    assert waiter.take() is None
    say(store, 4, holder={"host": "far", "pid": 1}, token="t", beats=2)
    clock.now += 29
    assert waiter.take() is None
    clock.now += 29
    assert waiter.take() is None
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
    store.put(f"{claims_folder(NAME)}/1.json", garbage)
    store.put(f"{claims_folder(NAME)}/notes.txt", b"")
    waiter = claims(store, Times(beat=3600.0, dead=30.0), clock=clock)
    assert waiter.take() is None
    assert waiter.present is None
    clock.now += 31
    taken(waiter).release()


def test_who_was_overtaken_finds_out_and_disturbs_nobody(store):
    slow = claims(store).take()
    assert slow is not None
    say(store, 2, holder={"host": "far", "pid": 1}, token="t", beats=7)
    until(lambda: slow.lost)
    slow.release()
    waiter = claims(store)
    assert waiter.take() is None
    assert waiter.present.beats == 7


def test_numbers_that_began_again_are_anothers(store):
    """The mirror was deleted, and somebody else has taken the number that we have."""
    slow = claims(store).take()
    assert slow is not None
    say(store, 1, holder={"host": "far", "pid": 1}, token="another's", beats=7)
    until(lambda: slow.lost)
    slow.release()
    assert json.loads(store.get(f"{claims_folder(NAME)}/1.json"))["beats"] == 7


class Interposed(DiskStore):
    """Something happens before a create, or every verb fails."""

    def __init__(self, root):
        super().__init__(root)
        self.before = None
        self.broken = None
        self.failed = 0

    def create(self, key, data):
        act, self.before = self.before, None
        if act:
            act()
        self._fail(key)
        super().create(key, data)

    def put(self, key, data):
        self._fail(key)
        super().put(key, data)

    def get(self, key):
        self._fail(key)
        return super().get(key)

    def list(self, prefix):
        self._fail(prefix)
        return super().list(prefix)

    def _fail(self, key):
        if self.broken is not None and self.broken in key:
            self.failed += 1
            raise StoreError("The store is away.", url=self.url, key=key)


def test_a_number_that_is_free_again_is_not_taken(tmp_path):
    """We looked, then two others took and gave back: our number was used and removed."""
    store, others = Interposed(tmp_path), []

    def meanwhile():
        plain = DiskStore(tmp_path)
        claims(plain).take().release()
        others.append(claims(plain).take())

    store.before = meanwhile
    assert claims(store).take() is None
    assert documents(store) == ["2.json"]
    until(lambda: json.loads(store.get(f"{claims_folder(NAME)}/2.json"))["beats"] > 1)
    assert not others[0].lost
    others[0].release()


def test_a_store_that_fails_between_two_beats_ends_nothing(tmp_path):
    store = Interposed(tmp_path)
    with taken(claims(store)) as held:
        store.broken = "weights"
        until(lambda: store.failed > 2)
        store.broken = None
        plain = claims(DiskStore(tmp_path))
        assert plain.take() is None
        beats = plain.present.beats
        until(lambda: plain.take() is None and plain.present.beats > beats + 1)
        assert not held.lost


def test_giving_back_to_a_store_that_is_away(tmp_path):
    store, clock = Interposed(tmp_path), Clock()
    held = claims(store).take()
    store.broken = "weights"
    held.release()
    store.broken = None
    waiter = claims(store, Times(beat=3600.0, dead=30.0), clock=clock)
    assert waiter.take() is None
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


# -- holders that die -----------------------------------------------------------------------------


def test_a_holder_that_was_killed_on_this_machine_is_dead_at_once(url, start):
    process = start(HOLDER, url, "here")
    assert process.stdout.readline() == "held\n"
    waiter = claims(open_store(url))
    assert waiter.take() is None
    process.kill()
    # Nobody has waited for the process yet: it is a zombie.
    until(waiter.take).release()
    process.wait()
    assert waiter.take() is not None


def test_a_holder_that_was_killed_elsewhere_is_dead_when_it_is_silent(url, start):
    process = start(HOLDER, url, "elsewhere")
    assert process.stdout.readline() == "held\n"
    waiter = claims(open_store(url), Times(beat=0.05, dead=5.0))
    heard = set()
    while len(heard) < 10:
        assert waiter.take() is None
        heard.add(waiter.present.beats)
    process.kill()
    until(waiter.take).release()


def test_processes_are_told_apart():
    here = this_process()
    assert not here.is_dead()
    assert not Holder("far", 1 << 22, "another machine", "1").is_dead()
    assert not Holder(here.host, here.pid, "", "").is_dead()
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        assert Holder(here.host, ended.pid, here.machine, "1").is_dead()
    # The pid is another process's by now.
    assert Holder(here.host, here.pid, here.machine, "1").is_dead()


# -- flying alone ---------------------------------------------------------------------------------


def publish(store):
    with suppress(ObjectExists):
        store.create(manifest_key(NAME), dump_manifest(MANIFEST))


def ask(store):
    return lambda: StoreMirror(store).manifest(NAME)


def test_one_flies_and_the_others_get_what_it_published(store):
    flights, lock = [], threading.Lock()

    def fly(number):
        with fly_alone(store, NAME, meter(), ask(store), times=PATIENT) as found:
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
        try:
            with fly_alone(store, NAME, meter(), ask(store), times=PATIENT) as found:
                if found is None:
                    alone.append(lock.acquire(blocking=False))
                    lock.release()
                    if len(failed) >= 3:
                        publish(store)
                    assert ask(store)(), "failed"
        except AssertionError:
            failed.append(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(fly, range(6)))
    assert len(failed) == 3
    assert all(alone)
    assert ask(store)() == MANIFEST


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
    assert [other.wait(60) for other in others] == [0, 0, 0]
    assert ask(open_store(url))() is not None
    assert len(list(flights.glob("flight-*"))) == (1 if first == "goes well" else 2)


def test_who_waits_shows_how_far_the_other_is(url, start):
    leader = start(HOLDER, url, "elsewhere")
    assert leader.stdout.readline() == "held\n"
    store, counts, seen = open_store(url), meter(), []
    counts.expect(files=2, size=9_900_000_000)
    looks = iter([None, None, None, MANIFEST])

    def asked():
        seen.append(counts.look())
        return next(looks)

    with fly_alone(store, NAME, counts, asked, times=PATIENT) as found:
        assert found == MANIFEST
    assert seen[-1].phase is Phase.WAITING
    assert seen[-1].note == "host far fetches it: 3.1 of 9.9 GB"
    assert seen[-1].bytes_done == 3_100_000_000
    after = counts.look()
    assert (after.note, after.bytes_done, after.files_done) == ("", 0, 0)


def test_what_is_published_needs_no_claim(store):
    publish(store)
    with fly_alone(store, NAME, meter(), ask(store), times=PATIENT) as found:
        assert found == MANIFEST
        taken(claims(store)).release()


def test_a_store_that_is_away_says_so_at_once(tmp_path):
    store = Interposed(tmp_path)
    store.broken = "weights"
    with (
        pytest.raises(StoreError, match="away"),
        fly_alone(store, NAME, meter(), ask(store), times=PATIENT),
    ):
        raise AssertionError
    store.broken = "manifests"
    with (
        pytest.raises(StoreError, match="away"),
        fly_alone(store, NAME, meter(), ask(store), times=PATIENT),
    ):
        raise AssertionError
    store.broken = None
    assert claims(store).take() is not None


def test_a_store_that_is_away_for_a_moment_ends_no_waiting(tmp_path, start):
    """Also when it fails right after we got the claim: that is given back, and taken again."""
    store = Interposed(tmp_path)
    leader = claims(DiskStore(tmp_path)).take()
    asked = []

    def manifest():
        asked.append(None)
        if len(asked) == 2:
            leader.release()
        if len(asked) in (3, 4):
            raise StoreError("The store is away.")

    with fly_alone(store, NAME, meter(), manifest, times=PATIENT) as found:
        assert found is None
        assert claims(DiskStore(tmp_path)).take() is None
    assert len(asked) >= 5


def test_a_store_that_stays_away_ends_the_waiting(tmp_path):
    store = Interposed(tmp_path)
    leader = claims(DiskStore(tmp_path), Times(beat=0.05)).take()
    asked = []

    def manifest():
        asked.append(None)
        store.broken = "weights"

    with (
        pytest.raises(StoreError, match="away"),
        fly_alone(store, NAME, meter(), manifest, times=Times(beat=0.05, dead=0.5, look=0.05)),
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
        fly_alone(store, NAME, meter(), manifest, times=PATIENT, stop=stop) as found,
    ):
        assert found is None
    assert len(looks) == 3
