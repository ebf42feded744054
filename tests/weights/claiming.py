"""Who claims a mirror: takers with clocks of their own, a process to kill, a store that fails."""

import json
import time

from prefect_bt.errors import StoreError
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.text.progress import ProgressMeter
from prefect_bt.weights.store_copy.claims import Claimant, ClaimTimings
from prefect_bt.weights.store_copy.copies import claims_prefix

NAME = "k1-r1"
PATIENT = ClaimTimings(renew_interval=0.05, expire_after=3600.0, poll_interval=0.05)
"""A holder is dead only where that is known."""

HOLDER = """
import sys, time
from prefect_bt.object_store import open_store
from prefect_bt.weights.store_copy import claims
from prefect_bt.weights.store_copy.claim_holders import Holder
from prefect_bt.text.progress import ProgressMeter
if sys.argv[2] == "elsewhere":
    claims.get_current_holder = lambda: Holder("far", 1, "another machine", "1")
meter = ProgressMeter("hf://o/r", None)
meter.set_totals(items=2, size=9_900_000_000)
meter.add_transferred(3_100_000_000)
times = claims.ClaimTimings(renew_interval=0.05)
store = open_store(sys.argv[1])
claimant = claims.Claimant(store, "k1-r1", get_progress=meter.snapshot, timings=times)
held = claimant.try_acquire()
print("held" if held else "not", flush=True)
time.sleep(3600)
"""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def meter():
    return ProgressMeter("hf://o/r", None)


def claims(store, times=PATIENT, **given):
    return Claimant(store, NAME, get_progress=meter().snapshot, timings=times, **given)


def taken(waiter):
    """Who must get it now."""
    held = waiter.try_acquire()
    assert held is not None
    return held


def documents(store):
    return [info.key.rpartition("/")[2] for info in store.list(claims_prefix(NAME))]


def say(store, number, **document):
    store.put(f"{claims_prefix(NAME)}/{number}.json", json.dumps(document).encode())


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
