"""Tombstones: checkpoints that a prune is about to delete, recorded before it deletes them.

    .../withdrawn/<uuid>.json      one per checkpoint and pruning process

A tombstone and a hold (retention/holds.py) exclude each other. A pruner writes its tombstone,
then looks for holds; a holder writes its hold, then looks for tombstones. The second of them sees
the first, so no held manifest is deleted, without a lock or a clock. The process that wrote a
tombstone removes it. A tombstone of a killed process is replaced by a new one, so that the old
one can be removed with its manifests; but if no manifest was deleted and the job was restarted
since, it is dropped (`discard_outdated`).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.ledger.creation import try_create
from prefect_bt.ledger.fencing_epochs import Epochs
from prefect_bt.object_keys import (
    attempt_prefix,
    job_objects_prefix,
    job_prefix,
    manifests_prefix,
    tombstones_prefix,
)
from prefect_bt.object_store.protocols import Store

_DECODE_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Tombstone:
    """`objects`: key -> bytes of what the manifests name, also where others name it too.

    `attempt` and `epoch`: the job's `Generation` when this was written.
    """

    name: str
    at: float
    manifests: tuple[str, ...]
    objects: dict[str, int]
    attempt: int = -1
    epoch: int = 0


def create_tombstone(store: Store, project_id: str, job_id: str, tombstone: Tombstone) -> str:
    """Write the tombstone; return its key."""
    key = f"{tombstones_prefix(project_id, job_id)}/{uuid.uuid4().hex}.json"
    try_create(store, key, _dump(tombstone))
    return key


def replace_tombstone(store: Store, key: str, tombstone: Tombstone) -> None:
    """Write a tombstone at its key again, if another process dropped it."""
    try:
        store.get_range(key, start=0, length=1)
    except ObjectNotFound:
        store.put(key, _dump(tombstone))


def _dump(tombstone: Tombstone) -> bytes:
    return codec.dumps(tombstone).encode("utf-8", "surrogatepass")


def iter_tombstones(store: Store, project_id: str, job_id: str) -> Iterator[tuple[str, Tombstone]]:
    """Yield every unfinished tombstone with its key, including those in progress.

    Names in a tombstone that are not of its job are left out: they must not be deleted. An
    unreadable tombstone is ignored: nothing is deleted for it.
    """
    manifests = f"{manifests_prefix(project_id, job_id)}/"
    objects = f"{job_objects_prefix(project_id, job_id)}/"
    for info in store.list(tombstones_prefix(project_id, job_id)):
        try:
            found = codec.decode(Tombstone, json.loads(store.get(info.key)))
            found = replace(
                found,
                manifests=tuple(key for key in found.manifests if _is_below(key, manifests)),
                objects={k: n for k, n in found.objects.items() if _is_below(k, objects)},
            )
        except (ObjectNotFound, *_DECODE_ERRORS):
            continue
        yield info.key, found


def _is_below(key: str, folder: str) -> bool:
    return key.startswith(folder) and {"", ".", ".."}.isdisjoint(key.split("/"))


def find_half_deleted(
    store: Store, project_id: str, job_id: str, *, present: Collection[str]
) -> set[str]:
    """Return all manifests of each tombstone of which some manifest is not `present` any more.

    A tombstone whose manifests are all present may still be revoked because of a hold.
    """
    going: set[str] = set()
    for _, found in iter_tombstones(store, project_id, job_id):
        if not set(present).issuperset(found.manifests):
            going.update(found.manifests)
    return going


@dataclass(frozen=True)
class Generation:
    """The newest attempt of a job (-1: none) and the newest claim to run it (0: none)."""

    attempt: int
    epoch: int

    @classmethod
    def read(cls, store: Store, project_id: str, job_id: str) -> Generation:
        """Read both from the store; raises StoreError."""
        prefix = job_prefix(project_id, job_id)
        keys = [info.key.split("/") for info in store.list(f"{prefix}/attempts")]
        attempts = [int(k[-2]) for k in keys if k[-1] == "attempt.json" and k[-2].isdecimal()]
        return cls(max(attempts, default=-1), _newest_epoch(store, project_id, job_id))

    def has_passed(self, store: Store, project_id: str, job_id: str) -> bool:
        """Return whether the job was started again since. Attempts are not listed: they
        have no gaps."""
        try:
            key = f"{attempt_prefix(project_id, job_id, self.attempt + 1)}/attempt.json"
            store.get_range(key, start=0, length=1)
        except ObjectNotFound:
            return _newest_epoch(store, project_id, job_id) > self.epoch
        return True

    def is_after(self, tombstone: Tombstone) -> bool:
        """Return whether the job was started again since the tombstone was written."""
        return tombstone.epoch < self.epoch or tombstone.attempt < self.attempt


def _newest_epoch(store: Store, project_id: str, job_id: str) -> int:
    return Epochs(store, job_id, job_prefix(project_id, job_id), clock=time.time).newest_run()


def list_outdated(store: Store, project_id: str, job_id: str) -> dict[str, Tombstone]:
    """Return tombstones by key that deleted nothing before the job was started again.
    StoreError."""
    begun = dict(iter_tombstones(store, project_id, job_id))
    if not begun:
        return {}
    now = Generation.read(store, project_id, job_id)
    there = _manifests(store, project_id, job_id)
    return {
        key: tombstone
        for key, tombstone in begun.items()
        if now.is_after(tombstone) and there.issuperset(tombstone.manifests)
    }


def discard_outdated(store: Store, project_id: str, job_id: str) -> None:
    """Delete outdated tombstones: the job may resume from their checkpoints. StoreError."""
    for key, tombstone in list_outdated(store, project_id, job_id).items():
        store.delete(key)
        # Its prune may have begun to delete: the tombstone must then exist.
        if not _manifests(store, project_id, job_id).issuperset(tombstone.manifests):
            replace_tombstone(store, key, tombstone)


def _manifests(store: Store, project_id: str, job_id: str) -> set[str]:
    return {info.key for info in store.list(manifests_prefix(project_id, job_id))}
