"""Holds: committed checkpoints that a running restore or a deployment needs.

    .../jobs/<job>/holds/<holder>.json      in the folder of the checkpoints' job

A hold is written before it is known whether all checkpoints still exist, and counts only if they do
(see committed/tombstones.py). It need not be released: the hold of a dead process is judged by its
holder's recorded state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt import codec
from prefect_bt.checkpoints.committed.tombstones import iter_tombstones
from prefect_bt.errors import NotFoundError, ObjectNotFound
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_keys import deleting_key, holds_prefix, manifests_prefix, quote_name
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import LoadedCheckpoint

JOB: Final = "job"
DEPLOYMENT: Final = "deployment"


@dataclass(frozen=True)
class Hold:
    """`holder`: a job's id, or a deployment's name; `kind`: JOB or DEPLOYMENT."""

    holder: str
    kind: str
    at: float
    manifests: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.kind} {self.holder}"


def acquire_holds(
    ledger: Ledger,
    checkpoints: Sequence[LoadedCheckpoint],
    *,
    holder: str,
    kind: str = JOB,
    name: str = "",
) -> tuple[tuple[str, ...], tuple[LoadedCheckpoint, ...]]:
    """Hold all `checkpoints` or none. Return the keys of the holds, and the checkpoints that
    are gone.

    A checkpoint that is about to be deleted is gone too. If any is gone, nothing is held. `name`:
    name of the hold, by default the holder; a second hold of this name replaces the first.
    """
    jobs = dict.fromkeys((one.project_id, one.job_id) for one in checkpoints)
    taken: list[str] = []
    for project_id, job_id in jobs:
        mine = [one for one in checkpoints if one.job_id == job_id]
        manifests = tuple(dict.fromkeys(key for one in mine for key in one.manifests))
        key = hold_key(project_id, job_id, name or holder)
        hold = Hold(holder, kind, ledger.now(), manifests)
        ledger.store.put(key, codec.dumps(hold).encode("utf-8", "surrogatepass"))
        taken.append(key)
    there = {job: _list_remaining_manifests(ledger.store, *job) for job in jobs}
    gone = [
        one
        for one in checkpoints
        if not there[one.project_id, one.job_id].issuperset(one.manifests)
    ]
    if gone:
        release_holds(ledger.store, taken)
        return (), tuple(gone)
    return tuple(taken), ()


def hold_key(project_id: str, job_id: str, name: str) -> str:
    """Return the key of the hold of this name."""
    return f"{holds_prefix(project_id, job_id)}/{quote_name(name)}.json"


def release_holds(store: Store, keys: Sequence[str]) -> None:
    """Release the holds. Idempotent."""
    for key in keys:
        store.delete(key)


def list_active_holds(ledger: Ledger, project_id: str, job_id: str) -> list[Hold]:
    """Return the active holds, oldest first; remove those of ended or deleted jobs."""
    found: list[Hold] = []
    for key, hold in _iter_holds(ledger.store, project_id, job_id):
        if _is_active(ledger, hold):
            found.append(hold)
        else:
            ledger.store.delete(key)
    return sorted(found, key=lambda hold: (hold.at, hold.holder))


def _iter_holds(store: Store, project_id: str, job_id: str) -> Iterator[tuple[str, Hold]]:
    for info in store.list(holds_prefix(project_id, job_id)):
        try:
            hold = codec.loads(Hold, store.get(info.key))
        except ObjectNotFound:
            continue
        yield info.key, hold


def iter_orphaned_holds(ledger: Ledger) -> Iterator[tuple[str, Hold]]:
    """Yield the holds of all jobs whose holder has ended, with their keys."""
    for job in ledger.list_jobs():
        for key, hold in _iter_holds(ledger.store, job.project_id, job.id):
            if not _is_active(ledger, hold):
                yield key, hold


def _is_active(ledger: Ledger, hold: Hold) -> bool:
    if hold.kind != JOB:
        return True
    try:
        ledger.get_job(hold.holder)
        return not ledger.get_state(hold.holder).terminal
    except NotFoundError:
        return False


def _list_remaining_manifests(store: Store, project_id: str, job_id: str) -> set[str]:
    """Return the keys of the job's manifests that are not about to be deleted."""
    # Tombstones first, then manifests: in the other order, a manifest that is deleted in between
    # would be seen, but not its tombstone.
    tombstones = dict(iter_tombstones(store, project_id, job_id)).values()
    going = {key for tombstone in tombstones for key in tombstone.manifests}
    try:
        store.get(deleting_key(project_id, job_id))
    except ObjectNotFound:
        there = {info.key for info in store.list(manifests_prefix(project_id, job_id))}
        return there - going
    return set()
