"""`prefect-bt checkpoints prune`: delete committed checkpoints that nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.jobs.selection import get_reconciled_state, no_jobs_error, select_jobs
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output, Yes
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.errors import NotFoundError, PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.checkpoints.retention.prune import Inventory, PruneResult
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord, RetentionPolicy

PositiveCount = Annotated[int | None, Parameter(validator=Number(gte=1))]


@dataclass
class _PrunePlan:
    """What is to happen to one job's checkpoints. Sizes in bytes, with nothing else freed by it."""

    record: JobRecord
    is_running: bool
    to_delete: dict[str, int] = field(default_factory=dict[str, int])
    to_keep: dict[str, str] = field(default_factory=dict[str, str])
    """Name -> why."""
    freed_bytes: int = 0
    orphan_objects: int = 0
    """Objects that no checkpoint names, of a job that is over."""

    @property
    def names(self) -> set[str]:
        return {*self.to_delete, *self.to_keep}

    @property
    def is_empty(self) -> bool:
        return not self.to_delete and not self.orphan_objects


def prune_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    keep_last: Annotated[
        PositiveCount,
        Parameter(help="Keep so many of every series (those with the highest steps)."),
    ] = None,
    keep_every: Annotated[
        PositiveCount, Parameter(help="Keep those whose step is a multiple of it as well.")
    ] = None,
    checkpoint_name: Annotated[
        tuple[str, ...], Parameter(help="Delete this one (name or id); may be given several times.")
    ] = (),
    dry_run: Annotated[bool, Parameter(help="Only show what would go.")] = False,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Delete committed checkpoints: those named, and those that a policy lets go.

    What another job loads or a deployment serves stays, and so does what a running job would go on
    from. Of a job that is over, bytes that no checkpoint names go as well.

    `prefect-bt checkpoints prune --job-id abc1234 --keep-last 3 --dry-run`
    """
    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.ledger.records import RetentionPolicy

    if which.job_id is None and which.selected_project is None:
        raise PrefectBtError("Nothing to prune was named.", next_step="Give --job-id or --project.")
    ledger = open_ledger()
    records = select_jobs(ledger, which, terminal)
    if not records:
        raise no_jobs_error(ledger, which)
    policy = RetentionPolicy(keep_last, keep_every)
    with terminal.spinner("Reading the manifests"):
        plans = [_plan(ledger, record, policy, checkpoint_name, terminal) for record in records]
    _check_names(plans, checkpoint_name)
    _show(terminal, plans)
    going = [plan for plan in plans if not plan.is_empty]
    if policy.keeps_all and not checkpoint_name:
        terminal.info("Which ones may go: --keep-last, --keep-every or --checkpoint-name.")
    if dry_run or not going:
        return _report_result(terminal, plans, [], dry_run, output)
    goes = format_count(sum(len(plan.to_delete) for plan in going), "checkpoint")
    question = f"Delete {goes} and what is left of others, for good?"
    if not (yes or terminal.confirm(question)):
        terminal.error("Nothing was deleted.")
        return FAILED
    with terminal.spinner("Deleting"):
        done = [(plan, _execute_plan(ledger, plan)) for plan in going]
    return _report_result(terminal, plans, done, dry_run, output)


def _plan(
    ledger: Ledger,
    record: JobRecord,
    policy: RetentionPolicy,
    named: tuple[str, ...],
    terminal: Terminal,
) -> _PrunePlan:
    from prefect_bt.checkpoints.committed.catalog import short_id
    from prefect_bt.checkpoints.committed.tombstones import iter_tombstones, list_outdated
    from prefect_bt.checkpoints.retention.policy import select_prunable
    from prefect_bt.checkpoints.retention.prune import Inventory

    live = not get_reconciled_state(ledger, record.id, terminal).terminal
    inventory = Inventory(ledger.store, record.project_id, record.id)
    # What an earlier prune had begun with when it was killed is finished by this one.
    place = record.project_id, record.id
    dropped = list_outdated(ledger.store, *place)
    begun = {one.name for key, one in iter_tombstones(ledger.store, *place) if key not in dropped}
    asked = {name for name in inventory.names if {name, short_id(record.id, name)} & {*named}}
    wanted = {*asked, *begun, *select_prunable(inventory.names, policy)}
    kept = _find_protected(ledger, inventory, live=live)
    plan = _PrunePlan(record, live)
    for name in inventory.names:
        if name in wanted and name not in kept:
            plan.to_delete[name] = sum(
                inventory.referenced_objects(inventory.get_refs(name)).values()
            )
        else:
            plan.to_keep[name] = kept.get(name) or _explain_kept(name, policy)
    plan.freed_bytes = sum(inventory.exclusive_objects(plan.to_delete).values())
    if not live:
        unnamed = inventory.unreferenced_objects()
        plan.orphan_objects, plan.freed_bytes = (
            len(unnamed),
            plan.freed_bytes + sum(unnamed.values()),
        )
    return plan


def _find_protected(ledger: Ledger, inventory: Inventory, *, live: bool) -> dict[str, str]:
    """Name -> why it stays, whatever was asked for."""
    from prefect_bt.checkpoints.committed.catalog import find_newest
    from prefect_bt.jobs.delete import list_reconciled_holds

    place = inventory.project_id, inventory.job_id
    kept: dict[str, str] = {}
    if live and (best := find_newest(ledger.store, *place)):
        kept[best.checkpoint_id] = "the running job would go on from it"
    for hold in list_reconciled_holds(ledger, *place):
        for ref in inventory.manifests:
            if ref.key in hold.manifests:
                kept[ref.name] = f"needed by {hold.label}"
    return kept


def _explain_kept(name: str, policy: RetentionPolicy) -> str:
    from prefect_bt.checkpoints.layout import parse_step

    step = parse_step(name)
    if policy.keeps_all:
        return "not named"
    if step is None:
        return "its name tells no step"
    if policy.keep_every and step % policy.keep_every == 0:
        return f"its step is a multiple of {policy.keep_every}"
    last = policy.keep_last or 1
    return "the newest of its series" if last == 1 else f"one of the last {last} of its series"


def _check_names(plans: list[_PrunePlan], named: tuple[str, ...]) -> None:
    from prefect_bt.checkpoints.committed.catalog import short_id

    there = {name for plan in plans for name in plan.names}
    ids = {short_id(plan.record.id, name) for plan in plans for name in plan.names}
    for name in named:
        if name not in there | ids:
            which = ", ".join(plan.record.id for plan in plans)
            listed = ", ".join(sorted(there)) or "none"
            raise NotFoundError("checkpoint", name, next_step=f"Job {which} has: {listed}.")


def _execute_plan(ledger: Ledger, plan: _PrunePlan) -> PruneResult:
    from prefect_bt.checkpoints.retention.prune import prune_job
    from prefect_bt.jobs.delete import claim_finished_job
    from prefect_bt.ledger.fencing_epochs import PRUNE
    from prefect_bt.settings import Settings

    place = plan.record.project_id, plan.record.id
    if plan.is_running:
        return prune_job(ledger.store, *place, plan.to_delete, is_running=True)
    owning = claim_finished_job(ledger, plan.record.id, settings=Settings(), purpose=PRUNE)
    with owning as fence:
        return prune_job(ledger.store, *place, plan.to_delete, is_running=False, fence=fence)


def _show(terminal: Terminal, plans: list[_PrunePlan]) -> None:
    from prefect_bt.cli.ui.tables import Column, show_table
    from prefect_bt.workspace.limits import format_bytes

    for plan in plans:
        if terminal.machine_readable:
            continue
        rows = [
            {"name": n, "size": format_bytes(s), "what": "goes"} for n, s in plan.to_delete.items()
        ]
        rows += [{"name": n, "size": "", "what": f"stays: {w}"} for n, w in plan.to_keep.items()]
        if rows:
            columns = [
                Column("Checkpoint Name", lambda row: row["name"]),
                Column("Size", lambda row: row["size"], no_wrap=True),
                Column("What Happens", lambda row: row["what"], min_width=20),
            ]
            show_table(terminal, f"Checkpoints for job: {plan.record.id}", columns, rows)
        if plan.orphan_objects:
            terminal.echo(
                f"As well: {format_count(plan.orphan_objects, 'object')} that no checkpoint names."
            )
        terminal.echo(_format_freed(plan, plan.freed_bytes, "Would free"))


def _format_freed(plan: _PrunePlan, size: int, verb: str) -> str:
    from prefect_bt.workspace.limits import format_bytes

    text = f"{verb} {format_bytes(size)}"
    if plan.is_running and size:
        return f"{text}, once job {plan.record.id} is over and pruned again."
    return f"{text}."


def _report_result(
    terminal: Terminal,
    plans: list[_PrunePlan],
    done: list[tuple[_PrunePlan, PruneResult]],
    dry_run: bool,
    output: str,
) -> int:
    """Tell what was done, with what others needed in the last moment."""
    for plan, pruned in done:
        for name, holders in pruned.held.items():
            if name in plan.to_delete:
                del plan.to_delete[name]
                plan.to_keep[name] = f"needed by {holders[0].label}"
        for name in pruned.protected:
            plan.to_delete.pop(name, None)
            plan.to_keep[name] = "the running job would go on from it"
        for key in pruned.unreadable_manifests:
            terminal.warn(
                f"{key} is no manifest, so nobody knows which objects it needs and none were "
                "deleted. Restore it, or prune that checkpoint."
            )
        plan.freed_bytes = pruned.freed_bytes
        text = f"Job {plan.record.id}: {format_count(len(pruned.pruned), 'checkpoint')} deleted. "
        terminal.echo(text + _format_freed(plan, pruned.freed_bytes, "Freed"), style="green")
    if output == "json":
        terminal.print_json(_document(plans, dry_run))
    elif not done:
        terminal.echo("Nothing was deleted." if dry_run else "Nothing is to be deleted.")
    return OK


def _document(plans: list[_PrunePlan], dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "freed_bytes": sum(plan.freed_bytes for plan in plans),
        "jobs": [
            {
                "job_id": plan.record.id,
                "running": plan.is_running,
                "deleted": [
                    {"checkpoint_id": name, "size_bytes": size}
                    for name, size in plan.to_delete.items()
                ],
                "kept": [{"checkpoint_id": name, "why": why} for name, why in plan.to_keep.items()],
                "leftover_objects": plan.orphan_objects,
                "freed_bytes": plan.freed_bytes,
            }
            for plan in plans
        ],
    }
