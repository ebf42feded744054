"""Who claims a mirror: takers with clocks of their own, a process to kill, a store that fails."""

import json
import time

from prefect_bt.errors import StoreError
from prefect_bt.objects.disk import DiskStore
from prefect_bt.weights.claims import Claims, Times
from prefect_bt.weights.progress import Meter
from prefect_bt.weights.shared import claims_folder

NAME = "k1-r1"
PATIENT = Times(beat=0.05, dead=3600.0, look=0.05)
"""A holder is dead only where that is known."""

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
    end = time.monotonic() + 200
    while not (found := true()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
    return found


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
