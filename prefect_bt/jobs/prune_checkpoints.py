"""Plan and execute the deletion of a job's committed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from prefect_bt.checkpoints.committed.catalog import find_newest, short_id
from prefect_bt.checkpoints.committed.tombstones import iter_tombstones, list_outdated
from prefect_bt.checkpoints.layout import parse_step
from prefect_bt.checkpoints.retention.policy import select_prunable
from prefect_bt.checkpoints.retention.prune import Inventory, PruneResult, prune_job
from prefect_bt.errors import NotFoundError
from prefect_bt.jobs.delete import claim_finished_job, list_reconciled_holds
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.fencing_epochs import PRUNE
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, RetentionPolicy
from prefect_bt.settings import Settings
from prefect_bt.text.number_ranges import natural_key

_RESUME_REASON: Final = "the running job would resume from it"


@dataclass
class PrunePlan:
    """The checkpoints of one job to delete, name -> bytes, and to keep, name -> reason.

    `orphan_objects`: number of objects that no checkpoint references, of a job that has ended.
    """

    record: JobRecord
    is_running: bool
    to_delete: dict[str, int] = field(default_factory=dict[str, int])
    to_keep: dict[str, str] = field(default_factory=dict[str, str])
    freed_bytes: int = 0
    orphan_objects: int = 0

    def to_document(self) -> dict[str, Any]:
        sizes, reasons = (
            sorted(found.items(), key=lambda item: natural_key(item[0]))
            for found in (self.to_delete, self.to_keep)
        )
        return {
            "job_id": self.record.id,
            "running": self.is_running,
            "deleted": [{"checkpoint_id": name, "size_bytes": size} for name, size in sizes],
            "kept": [{"checkpoint_id": name, "why": why} for name, why in reasons],
            "leftover_objects": self.orphan_objects,
            "freed_bytes": self.freed_bytes,
        }


def plan_prune(
    ledger: Ledger,
    record: JobRecord,
    policy: RetentionPolicy,
    named: tuple[str, ...],
    *,
    is_running: bool,
) -> PrunePlan:
    """Return what a prune deletes: checkpoints outside the policy, or named by name or ID.

    Raise StoreError.
    """
    plan = PrunePlan(record, is_running)
    place = record.project_id, record.id
    inventory = Inventory(ledger.store, *place)
    # Deletions that a killed prune began are completed by this one.
    dropped = list_outdated(ledger.store, *place)
    begun = {one.name for key, one in iter_tombstones(ledger.store, *place) if key not in dropped}
    asked = {name for name in inventory.names if {name, short_id(record.id, name)} & {*named}}
    wanted = {*asked, *begun, *select_prunable(inventory.names, policy)}
    protected = _find_protected(ledger, inventory, is_running=plan.is_running)
    for name in inventory.names:
        if name in wanted and name not in protected:
            objects = inventory.referenced_objects(inventory.get_refs(name))
            plan.to_delete[name] = sum(objects.values())
        else:
            plan.to_keep[name] = protected.get(name) or _explain_kept(name, policy)
    orphans = {} if plan.is_running else inventory.unreferenced_objects()
    exclusive = inventory.exclusive_objects(plan.to_delete)
    plan.orphan_objects = len(orphans)
    plan.freed_bytes = sum(exclusive.values()) + sum(orphans.values())
    return plan


def _find_protected(ledger: Ledger, inventory: Inventory, *, is_running: bool) -> dict[str, str]:
    """Return name -> reason of the checkpoints that are kept regardless of the options."""
    place = inventory.project_id, inventory.job_id
    kept: dict[str, str] = {}
    if is_running and (best := find_newest(ledger.store, *place)):
        kept[best.checkpoint_id] = _RESUME_REASON
    for hold in list_reconciled_holds(ledger, *place):
        names = {ref.name for ref in inventory.manifests if ref.key in hold.manifests}
        kept |= dict.fromkeys(names, f"needed by {hold.label}")
    return kept


def _explain_kept(name: str, policy: RetentionPolicy) -> str:
    step = parse_step(name)
    if policy.keeps_all:
        return "not selected"
    if step is None:
        return "its name has no step"
    if policy.keep_every and step % policy.keep_every == 0:
        return f"its step is a multiple of {policy.keep_every}"
    last = policy.keep_last or 1
    return f"one of the last {last} of its series" if last > 1 else "the newest of its series"


def check_names(plans: list[PrunePlan], named: tuple[str, ...]) -> None:
    """Raise NotFoundError for a name or ID that no job has."""
    known = {
        (name, short_id(plan.record.id, name))
        for plan in plans
        for name in (*plan.to_delete, *plan.to_keep)
    }
    for unknown in set(named).difference(*known):
        jobs = ", ".join(plan.record.id for plan in plans)
        listed = ", ".join(sorted({name for name, _ in known}, key=natural_key)) or "none"
        raise NotFoundError("checkpoint", unknown, next_step=f"Job {jobs} has: {listed}.")


def execute_prune(ledger: Ledger, plan: PrunePlan, *, settings: Settings) -> PruneResult:
    """Delete; checkpoints that came into use meanwhile are moved to the ones to keep."""
    place = ledger.store, plan.record.project_id, plan.record.id
    if plan.is_running:
        pruned = prune_job(*place, plan.to_delete, is_running=True)
        delete_ended_document(ledger.store, plan.record.id)  # the job may have ended meanwhile
    else:
        owning = claim_finished_job(ledger, plan.record.id, settings=settings, purpose=PRUNE)
        with owning as fence:
            pruned = prune_job(*place, plan.to_delete, is_running=False, fence=fence)
    held = {name: f"needed by {holds[0].label}" for name, holds in pruned.held.items()}
    in_use = {name: why for name, why in held.items() if name in plan.to_delete}
    for name, why in (in_use | dict.fromkeys(pruned.protected, _RESUME_REASON)).items():
        plan.to_delete.pop(name, None)
        plan.to_keep[name] = why
    plan.freed_bytes = pruned.freed_bytes
    return pruned
