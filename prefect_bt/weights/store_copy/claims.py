"""Exclusive claims on a mirror, across hosts, as numbered records in the store.

    weights/claims/<name>/<n>.json      numbered and create-only: one of many takers gets a number

The highest number holds. Its holder replaces the document every few seconds; who waits calls a
holder dead when the document has not changed for half a minute by its own clock, and takes the next
number. Clocks of two hosts are never compared. A holder that was only slow finds the higher number
and has lost; that both fetch is harmless, for blobs are named by their content.

A claim that is given back says so and stays, so that no number is used twice; the next taker
removes it.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from prefect_bt import codec
from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.object_store.protocols import ObjectInfo, Store
from prefect_bt.text.progress import Progress
from prefect_bt.weights.store_copy.claim_holders import Holder, get_current_holder
from prefect_bt.weights.store_copy.copies import claims_prefix

_NUMBER: Final = re.compile(r"(\d{1,18})\.json")


_RELEASE_TIMEOUT: Final = 5.0
"""Seconds that giving a claim back may take; else the others find out by themselves."""


@dataclass(frozen=True)
class ClaimTimings:
    """In seconds: between a holder's words, until it is dead without one, between two looks."""

    renew_interval: float = 5.0
    expire_after: float = 30.0
    poll_interval: float = 2.0


DEFAULT_TIMINGS: Final = ClaimTimings()


@dataclass(frozen=True)
class ClaimRecord:
    """What a holder says. `token` tells claims apart, `beats` makes each word another one."""

    holder: Holder
    token: str
    beats: int = 0
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    released: bool = False


class Claim:
    """Held until `release`, with a thread that says so; a context manager."""

    def __init__(
        self,
        store: Store,
        key: str,
        record: ClaimRecord,
        get_progress: Callable[[], Progress],
        renew_interval: float,
    ) -> None:
        self._store, self._key, self._standing = store, key, record
        self._says, self._beat = get_progress, renew_interval
        self._lost, self._over = False, threading.Event()
        self._thread = threading.Thread(target=self._run, name="weights-claim", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether somebody took over, because we said nothing for too long."""
        return self._lost

    def release(self) -> None:
        """Idempotent. Where the store cannot be reached, the others see us as dead in time."""
        self._over.set()
        self._thread.join(_RELEASE_TIMEOUT)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _run(self) -> None:
        """Also the last word is this thread's, so that no earlier one comes after it."""
        while not self._lost and not self._over.wait(self._beat):
            # A store that fails now is asked again with the next beat; the fetch goes on.
            with suppress(StoreError):
                self._write_record()
        with suppress(StoreError):
            if not self._lost:
                self._write_record(released=True)

    def _write_record(self, *, released: bool = False) -> None:
        folder, _, name = self._key.rpartition("/")
        own = int(name.removesuffix(".json"))
        self._lost = any(number > own for number in _numbers(self._store, folder))
        if not self._lost:
            self._lost = self._is_replaced()
        if self._lost:
            return
        now = self._says()
        self._standing = replace(
            self._standing,
            beats=self._standing.beats + 1,
            files_done=now.items_done,
            files_total=now.items_total,
            bytes_done=now.bytes_done,
            bytes_total=now.bytes_total,
            released=released,
        )
        self._store.put(self._key, codec.dumps(self._standing).encode())

    def _is_replaced(self) -> bool:
        """Numbers begin again when the mirror was deleted."""
        try:
            there = _parse_record(self._store.get(self._key))
        except ObjectNotFound:
            return False
        return there is not None and there.token != self._standing.token


class Claimant:
    """Of one mirror, as one who may want it sees them.

    `get_progress`: what we tell others once we hold.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        get_progress: Callable[[], Progress],
        timings: ClaimTimings = DEFAULT_TIMINGS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._folder, self._says = store, claims_prefix(name), get_progress
        self._times, self._clock = timings, clock
        self._seen: tuple[int, bytes] = (0, b"")
        self._since = clock()
        self.current_record: ClaimRecord | None = None
        """What the holder said when `try_acquire` last found one; None when that cannot be read."""

    def try_acquire(self) -> Claim | None:
        """None: somebody holds it who lives as far as we know; ask again. Raises StoreError."""
        numbers = _numbers(self._store, self._folder)
        top = max(numbers, default=0)
        if top and self._is_live(top):
            return None
        key = f"{self._folder}/{top + 1}.json"
        own = ClaimRecord(get_current_holder(), uuid.uuid4().hex)
        if not self._create(key, own) or not self._is_highest(key, top + 1):
            return None
        claim = Claim(self._store, key, own, self._says, self._times.renew_interval)
        with suppress(StoreError):
            for number in numbers:
                self._store.delete(f"{self._folder}/{number}.json")
        return claim

    def _create(self, key: str, own: ClaimRecord) -> bool:
        try:
            self._store.create(key, codec.dumps(own).encode())
        except StoreError as error:
            # It is ours when only the answer was lost.
            there = self._get_or_none(key)
            found = _parse_record(there) if there is not None else None
            if found is not None and found.token == own.token:
                return True
            if isinstance(error, ObjectExists):
                return False
            raise
        return True

    def _is_highest(self, key: str, own: int) -> bool:
        """A number is free again once its follower was taken: we had looked before that."""
        try:
            if max(_numbers(self._store, self._folder), default=0) <= own:
                return True
        except StoreError:
            with suppress(StoreError):
                self._store.delete(key)
            raise
        self._store.delete(key)
        return False

    def _is_live(self, number: int) -> bool:
        data = self._get_or_none(f"{self._folder}/{number}.json")
        if data is None:  # removed by the taker of a higher number
            return True
        if (number, data) != self._seen:
            self._seen, self._since = (number, data), self._clock()
        self.current_record = _parse_record(data)
        if self.current_record and (
            self.current_record.released or self.current_record.holder.is_dead()
        ):
            return False
        return self._clock() - self._since < self._times.expire_after

    def _get_or_none(self, key: str) -> bytes | None:
        try:
            return self._store.get(key)
        except ObjectNotFound:
            return None


@dataclass(frozen=True)
class StaleClaim:
    """A claim that counts no more. `bytes` of its document, `modified_at` in epoch seconds."""

    key: str
    token: str
    reason: str
    modified_at: float
    bytes: int


def iter_stale_claims(store: Store) -> Iterator[StaleClaim]:
    """Those that a later one took over, or whose holder is known to be dead from here.

    One that was given back stays: it keeps its number from being used twice. Raises StoreError.
    """
    top: dict[str, int] = {}
    found: list[tuple[str, int, ObjectInfo]] = []
    for info in store.list(claims_prefix("").rstrip("/")):
        folder, _, name = info.key.rpartition("/")
        number = _NUMBER.fullmatch(name)
        if number:
            found.append((folder, int(number[1]), info))
            top[folder] = max(top.get(folder, 0), int(number[1]))
    for folder, number, info in found:
        with suppress(ObjectNotFound):
            standing = _parse_record(store.get(info.key))
            below = number < top[folder]
            if standing and (below or (not standing.released and standing.holder.is_dead())):
                why = "a later claim took over" if below else "its holder is dead"
                yield StaleClaim(info.key, standing.token, why, info.modified, info.size)


def find_active_claim(store: Store, key: str) -> ClaimRecord | None:
    """Return what the holder that mirrors the source `key` last said; None: no holder is known.

    `key` is plan.WeightsPlan.key, at any revision. Raises StoreError.
    """
    root = claims_prefix("").rstrip("/")
    found = (info for info in store.list(root) if info.key.startswith(f"{root}/{key}-"))
    return next(_iter_active_records(store, found), None)


def list_active_claims(
    store: Store, *, now: float, stale_after: float = 600.0
) -> dict[str, ClaimRecord]:
    """Return what is mirrored now, by its name: claims that were renewed in `stale_after` seconds.

    `now` is compared with the store's clock, hence the long time. Raises StoreError.
    """
    found: dict[str, ClaimRecord] = {}
    for info in store.list(claims_prefix("").rstrip("/")):
        name = info.key.rpartition("/")[0].rpartition("/")[2]
        if now - info.modified < stale_after and (
            standing := next(_iter_active_records(store, [info]), None)
        ):
            found[name] = standing
    return found


def _iter_active_records(store: Store, claims: Iterable[ObjectInfo]) -> Iterator[ClaimRecord]:
    """The newest first."""
    for info in sorted(claims, key=lambda info: info.modified, reverse=True):
        with suppress(ObjectNotFound):
            standing = _parse_record(store.get(info.key))
            if standing and not standing.released and not standing.holder.is_dead():
                yield standing


def delete_stale_claim(store: Store, claim: StaleClaim) -> None:
    """Unless another claim has its number meanwhile."""
    with suppress(ObjectNotFound):
        standing = _parse_record(store.get(claim.key))
        if standing is not None and standing.token == claim.token:
            store.delete(claim.key)


def _numbers(store: Store, folder: str) -> list[int]:
    names = (info.key.rpartition("/")[2] for info in store.list(folder))
    return [int(found[1]) for name in names if (found := _NUMBER.fullmatch(name))]


def _parse_record(data: bytes) -> ClaimRecord | None:
    """None for what no release that we know writes: it may still be a holder's, who changes it."""
    try:
        found: Any = codec.loads(ClaimRecord, data)
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(found.holder, Holder):
        return None
    counts = (found.holder.pid, found.files_done, found.bytes_done, found.bytes_total)
    return found if all(isinstance(count, int) for count in counts) else None
