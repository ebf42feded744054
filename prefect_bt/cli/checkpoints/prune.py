"""`prefect-bt checkpoints prune`: delete committed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from prefect_bt.checkpoints.committed.catalog import find_newest, short_id
from prefect_bt.checkpoints.committed.tombstones import iter_tombstones, list_outdated
from prefect_bt.checkpoints.layout import parse_step
from prefect_bt.checkpoints.retention.policy import select_prunable
from prefect_bt.checkpoints.retention.prune import Inventory, PruneResult, prune_job
from prefect_bt.cli.jobs.selection import get_reconciled_state, no_jobs_error, select_jobs
from prefect_bt.cli.ui.options import (
    NO_FILTER,
    DryRun,
    InjectedTerminal,
    JobFilter,
    Output,
    PositiveCount,
    Yes,
)
from prefect_bt.cli.ui.tables import Column, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.errors import NotFoundError, PrefectBtError
from prefect_bt.jobs.delete import claim_finished_job, list_reconciled_holds
from prefect_bt.ledger.fencing_epochs import PRUNE
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.ledger.records import JobRecord, RetentionPolicy
from prefect_bt.settings import Settings
from prefect_bt.workspace.limits import format_bytes

_COLUMNS: Final = [
    Column("Checkpoint Name", "checkpoint_id"),
    Column("Size", "size_bytes", lambda size: "" if size is None else format_bytes(size)),
    Column("Action", "why", lambda why: f"keep: {why}" if why else "delete", wrap=True),
]
_RESUME_REASON: Final = "the running job would resume from it"


@dataclass
class _PrunePlan:
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
        sizes, reasons = self.to_delete.items(), self.to_keep.items()
        return {
            "job_id": self.record.id,
            "running": self.is_running,
            "deleted": [{"checkpoint_id": name, "size_bytes": size} for name, size in sizes],
            "kept": [{"checkpoint_id": name, "why": why} for name, why in reasons],
            "leftover_objects": self.orphan_objects,
            "freed_bytes": self.freed_bytes,
        }


def prune_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    keep_last: PositiveCount = None,
    keep_every: PositiveCount = None,
    checkpoint_name: tuple[str, ...] = (),
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Keep what is in use: checkpoints that another job loads, that a deployment serves, or that a
    running job would resume from.

    For a job that has ended, objects that no checkpoint references are deleted as well.

    Args:
        keep_last: Keep the N checkpoints with the highest steps, per series.
        keep_every: Also keep checkpoints whose step is a multiple of N.
        checkpoint_name: Delete this checkpoint, by name or ID. Repeatable.

    Examples:

    `prefect-bt checkpoints prune --job-id abc1234 --keep-last 3 --dry-run`

    `prefect-bt checkpoints prune --job-id abc1234 --checkpoint-name checkpoint-20 --yes`
    """
    if which.job_id is None and which.selected_project is None:
        raise PrefectBtError(
            "checkpoints prune needs a job or a project.", next_step="Give --job-id or --project."
        )
    ledger = open_ledger()
    records = select_jobs(ledger, which, terminal)
    if not records:
        raise no_jobs_error(ledger, which)
    policy = RetentionPolicy(keep_last, keep_every)
    with terminal.spinner("Reading the manifests"):
        plans = [_plan(ledger, record, policy, checkpoint_name, terminal) for record in records]
    _check_names(plans, checkpoint_name)
    if not terminal.machine_readable:
        _show(terminal, plans)
    if policy.keeps_all and not checkpoint_name:
        terminal.info("Select checkpoints with --keep-last, --keep-every or --checkpoint-name.")
    pending = [one for one in plans if not dry_run and (one.to_delete or one.orphan_objects)]
    if pending:
        count = format_count(sum(len(plan.to_delete) for plan in pending), "checkpoint")
        terminal.confirm(f"Delete {count} and unreferenced objects permanently?", yes=yes)
    for plan in pending:
        with terminal.spinner(f"Deleting checkpoints of job {plan.record.id}"):
            pruned = _execute_plan(ledger, plan)
        for key in pruned.unreadable_manifests:
            terminal.warn(
                f"{key} cannot be read, so the objects that it references are unknown and none "
                "were deleted. Restore it, or prune that checkpoint."
            )
        deleted = f"{format_count(len(pruned.pruned), 'checkpoint')} deleted"
        freed = _format_freed(plan, "Freed")
        terminal.echo(f"Job {plan.record.id}: {deleted}. {freed}", style="green")
    nothing = "Nothing was deleted." if dry_run else "There is nothing to delete."
    document = {
        "dry_run": dry_run,
        "freed_bytes": sum(plan.freed_bytes for plan in plans),
        "jobs": [plan.to_document() for plan in plans],
    }
    return terminal.print_result(document, lambda: None if pending else terminal.echo(nothing))


def _plan(
    ledger: Ledger,
    record: JobRecord,
    policy: RetentionPolicy,
    named: tuple[str, ...],
    terminal: Terminal,
) -> _PrunePlan:
    plan = _PrunePlan(record, not get_reconciled_state(ledger, record.id, terminal).terminal)
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


def _check_names(plans: list[_PrunePlan], named: tuple[str, ...]) -> None:
    """Raise NotFoundError for a name or ID that no job has."""
    known = {
        (name, short_id(plan.record.id, name))
        for plan in plans
        for name in (*plan.to_delete, *plan.to_keep)
    }
    for unknown in set(named).difference(*known):
        jobs = ", ".join(plan.record.id for plan in plans)
        listed = ", ".join(sorted({name for name, _ in known})) or "none"
        raise NotFoundError("checkpoint", unknown, next_step=f"Job {jobs} has: {listed}.")


def _show(terminal: Terminal, plans: list[_PrunePlan]) -> None:
    for plan in plans:
        document = plan.to_document()
        if rows := document["deleted"] + document["kept"]:
            show_table(terminal, f"Checkpoints for job: {plan.record.id}", _COLUMNS, rows)
        if plan.orphan_objects:
            terminal.echo(f"Unreferenced objects to delete: {plan.orphan_objects}.")
        terminal.echo(_format_freed(plan, "Would free"))


def _format_freed(plan: _PrunePlan, verb: str) -> str:
    later = f" when job {plan.record.id} has ended and is pruned again"
    when = later if plan.is_running and plan.freed_bytes else ""
    return f"{verb} {format_bytes(plan.freed_bytes)}{when}."


def _execute_plan(ledger: Ledger, plan: _PrunePlan) -> PruneResult:
    """Delete, and move to the checkpoints to keep those that came into use meanwhile."""
    place = ledger.store, plan.record.project_id, plan.record.id
    if plan.is_running:
        pruned = prune_job(*place, plan.to_delete, is_running=True)
    else:
        owning = claim_finished_job(ledger, plan.record.id, settings=Settings(), purpose=PRUNE)
        with owning as fence:
            pruned = prune_job(*place, plan.to_delete, is_running=False, fence=fence)
    held = {name: f"needed by {holds[0].label}" for name, holds in pruned.held.items()}
    in_use = {name: why for name, why in held.items() if name in plan.to_delete}
    for name, why in (in_use | dict.fromkeys(pruned.protected, _RESUME_REASON)).items():
        plan.to_delete.pop(name, None)
        plan.to_keep[name] = why
    plan.freed_bytes = pruned.freed_bytes
    return pruned
