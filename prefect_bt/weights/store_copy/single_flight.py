"""Single flight across hosts: one fetches a source for the store, the others wait for it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from prefect_bt.errors import StoreError
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.progress import Phase, ProgressMeter
from prefect_bt.weights.manifest import WeightsManifest
from prefect_bt.weights.store_copy.claims import (
    DEFAULT_TIMINGS,
    Claimant,
    ClaimRecord,
    ClaimTimings,
)


@contextmanager
def single_flight(  # noqa: PLR0913 (times and stop are seldom given)
    store: Store,
    name: str,
    meter: ProgressMeter,
    find_manifest: Callable[[], WeightsManifest | None],
    *,
    timings: ClaimTimings = DEFAULT_TIMINGS,
    stop: threading.Event | None = None,
) -> Generator[WeightsManifest | None]:
    """Yields None once we hold the claim, and shall fetch and publish; it is given back at the end.

    Yields the manifest when somebody published it meanwhile: then nothing is held. `find_manifest`
    asks the store. Once `stop` is set it yields None too, and nothing may be held. Raises
    StoreError when the store cannot be used: at once, or, once it could, for as long as a holder
    may be silent.
    """
    stop = stop or threading.Event()
    claims = Claimant(store, name, get_progress=meter.snapshot, timings=timings)
    waiting, well = _WaitReporter(meter, timings.poll_interval, stop), None
    with ExitStack() as held:
        while True:
            try:
                mine, found = _try_acquire(claims, find_manifest, held)
                well = time.monotonic()
            except StoreError:
                held.close()
                if well is None or time.monotonic() - well > timings.expire_after:
                    raise
                mine, found = False, None
            if found is not None:
                held.close()
            if mine or found is not None or stop.is_set():
                break
            waiting.wait_once(claims.current_record)
        waiting.finish()
        yield found


def _try_acquire(
    claims: Claimant, manifest: Callable[[], WeightsManifest | None], held: ExitStack
) -> tuple[bool, WeightsManifest | None]:
    """Whether the claim is ours now, and what is published."""
    claim = claims.try_acquire()
    if claim is not None:
        held.enter_context(claim)
    # Asked after the claim: who had it before may have published.
    return claim is not None, manifest()


class _WaitReporter:
    """What the user sees meanwhile. Looks are a little irregular, so that many hosts part."""

    def __init__(self, meter: ProgressMeter, poll_interval: float, stop: threading.Event) -> None:
        self._meter, self._look, self._pause = meter, poll_interval, min(0.2, poll_interval)
        self._stop = stop
        self._note = ""
        self._waited = False

    def wait_once(self, present: ClaimRecord | None) -> None:
        if not self._waited:
            self._waited = True
            self._meter.enter_phase(Phase.WAITING)
        if present is not None:
            self._meter.set_done(items=present.files_done, size=present.bytes_done)
            if (note := _format_record(present)) != self._note:
                self._note = note
                self._meter.set_note(note)
        self._stop.wait(self._pause * random.uniform(0.7, 1.0))  # noqa: S311
        self._pause = min(self._look, 1.5 * self._pause)

    def finish(self) -> None:
        """What another one did is not what we have done."""
        if self._waited:
            self._meter.set_done(items=0, size=0)
            self._meter.set_note("")


def _format_record(present: ClaimRecord) -> str:
    """
    >>> from prefect_bt.weights.store_copy.claim_holders import Holder
    >>> holder = Holder("a", 1)
    >>> _format_record(ClaimRecord(holder, "", bytes_done=3_100_000_000, bytes_total=9_870_000_000))
    'host a fetches it: 3.1 of 9.9 GB'
    >>> _format_record(ClaimRecord(holder, "", bytes_done=0, bytes_total=0))
    'host a fetches it'
    """
    said = f"host {present.holder.host} fetches it"
    if not present.bytes_total:
        return said
    unit, name = (1e9, "GB") if present.bytes_total >= 1e9 else (1e6, "MB")
    return f"{said}: {present.bytes_done / unit:.1f} of {present.bytes_total / unit:.1f} {name}"
