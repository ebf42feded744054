"""`prefect-bt checkpoints prune`: delete committed checkpoints that nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.options import NO_FILTER, Here, JobFilter, Output, Yes
from prefect_bt.cli.selection import find_jobs, no_jobs, settled_state
from prefect_bt.cli.terminal import FAILED, OK, Terminal, counted
from prefect_bt.errors import NotFoundError, PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.checkpoints.pruning import Inventory, Pruned
    from prefect_bt.ledger import Ledger
    from prefect_bt.records import JobRecord, Retention

Count = Annotated[int | None, Parameter(validator=Number(gte=1))]


@dataclass
class _Plan:
    """What is to happen to one job's checkpoints. Sizes in bytes, with nothing else freed by it."""

    record: JobRecord
    live: bool
    going: dict[str, int] = field(default_factory=dict[str, int])
    staying: dict[str, str] = field(default_factory=dict[str, str])
    """Name -> why."""
    freed: int = 0
    leftovers: int = 0
    """Objects that no checkpoint names, of a job that is over."""

    @property
    def names(self) -> set[str]:
        return {*self.going, *self.staying}

    @property
    def empty(self) -> bool:
        return not self.going and not self.leftovers


def prune_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    keep_last: Annotated[
        Count, Parameter(help="Keep so many of every series (those with the highest steps).")
    ] = None,
    keep_every: Annotated[
        Count, Parameter(help="Keep those whose step is a multiple of it as well.")
    ] = None,
    checkpoint_name: Annotated[
        tuple[str, ...], Parameter(help="Delete this one (name or id); may be given several times.")
    ] = (),
    dry_run: Annotated[bool, Parameter(help="Only show what would go.")] = False,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Delete committed checkpoints: those named, and those that a policy lets go.

    What another job loads or a deployment serves stays, and so does what a running job would go on
    from. Of a job that is over, bytes that no checkpoint names go as well.

    `prefect-bt checkpoints prune --job-id abc1234 --keep-last 3 --dry-run`
    """
    from prefect_bt.jobs import open_ledger
    from prefect_bt.records import Retention

    if which.job_id is None and which.wanted_project is None:
        raise PrefectBtError("Nothing to prune was named.", next_step="Give --job-id or --project.")
    ledger, beside = open_ledger(), terminal.beside(output)
    records = find_jobs(ledger, which, beside)
    if not records:
        raise no_jobs(ledger, which)
    policy = Retention(keep_last, keep_every)
    with beside.working("Reading the manifests"):
        plans = [_plan(ledger, record, policy, checkpoint_name, beside) for record in records]
    _check_names(plans, checkpoint_name)
    _show(beside, plans)
    going = [plan for plan in plans if not plan.empty]
    if policy.keeps_all and not checkpoint_name:
        beside.note("Which ones may go: --keep-last, --keep-every or --checkpoint-name.")
    if dry_run or not going:
        return _close(beside, plans, [], dry_run, output)
    goes = counted(sum(len(plan.going) for plan in going), "checkpoint")
    question = f"Delete {goes} and what is left of others, for good?"
    if not (yes or beside.confirm(question)):
        terminal.error("Nothing was deleted.")
        return FAILED
    with beside.working("Deleting"):
        done = [(plan, _prune(ledger, plan)) for plan in going]
    return _close(beside, plans, done, dry_run, output)


def _plan(
    ledger: Ledger,
    record: JobRecord,
    policy: Retention,
    named: tuple[str, ...],
    terminal: Terminal,
) -> _Plan:
    from prefect_bt.checkpoints.catalogue import id_of
    from prefect_bt.checkpoints.pruning import Inventory
    from prefect_bt.checkpoints.retention import expendable
    from prefect_bt.checkpoints.withdrawal import outdated, pending

    live = not settled_state(ledger, record.id, terminal).terminal
    inventory = Inventory(ledger.store, record.project_id, record.id)
    # What an earlier prune had begun with when it was killed is finished by this one.
    place = record.project_id, record.id
    dropped = outdated(ledger.store, *place)
    begun = {one.name for key, one in pending(ledger.store, *place) if key not in dropped}
    asked = {name for name in inventory.names if {name, id_of(record.id, name)} & {*named}}
    wanted = {*asked, *begun, *expendable(inventory.names, policy)}
    kept = _needed(ledger, inventory, live=live)
    plan = _Plan(record, live)
    for name in inventory.names:
        if name in wanted and name not in kept:
            plan.going[name] = sum(inventory.named(inventory.of_name(name)).values())
        else:
            plan.staying[name] = kept.get(name) or _why(name, policy)
    plan.freed = sum(inventory.only_in(plan.going).values())
    if not live:
        unnamed = inventory.unnamed()
        plan.leftovers, plan.freed = len(unnamed), plan.freed + sum(unnamed.values())
    return plan


def _needed(ledger: Ledger, inventory: Inventory, *, live: bool) -> dict[str, str]:
    """Name -> why it stays, whatever was asked for."""
    from prefect_bt.checkpoints.catalogue import newest
    from prefect_bt.deletion import settled_holds

    place = inventory.project_id, inventory.job_id
    kept: dict[str, str] = {}
    if live and (best := newest(ledger.store, *place)):
        kept[best.checkpoint_id] = "the running job would go on from it"
    for hold in settled_holds(ledger, *place):
        for ref in inventory.manifests:
            if ref.key in hold.manifests:
                kept[ref.name] = f"needed by {hold.who}"
    return kept


def _why(name: str, policy: Retention) -> str:
    from prefect_bt.checkpoints.layout import step_of_name

    step = step_of_name(name)
    if policy.keeps_all:
        return "not named"
    if step is None:
        return "its name tells no step"
    if policy.keep_every and step % policy.keep_every == 0:
        return f"its step is a multiple of {policy.keep_every}"
    last = policy.keep_last or 1
    return "the newest of its series" if last == 1 else f"one of the last {last} of its series"


def _check_names(plans: list[_Plan], named: tuple[str, ...]) -> None:
    from prefect_bt.checkpoints.catalogue import id_of

    there = {name for plan in plans for name in plan.names}
    ids = {id_of(plan.record.id, name) for plan in plans for name in plan.names}
    for name in named:
        if name not in there | ids:
            which = ", ".join(plan.record.id for plan in plans)
            listed = ", ".join(sorted(there)) or "none"
            raise NotFoundError("checkpoint", name, next_step=f"Job {which} has: {listed}.")


def _prune(ledger: Ledger, plan: _Plan) -> Pruned:
    from prefect_bt.checkpoints.pruning import prune_job
    from prefect_bt.deletion import owning_ended_job
    from prefect_bt.epochs import PRUNE
    from prefect_bt.settings import Settings

    place = plan.record.project_id, plan.record.id
    if plan.live:
        return prune_job(ledger.store, *place, plan.going, live=True)
    owning = owning_ended_job(ledger, plan.record.id, settings=Settings(), purpose=PRUNE)
    with owning as fence:
        return prune_job(ledger.store, *place, plan.going, live=False, fence=fence)


def _show(terminal: Terminal, plans: list[_Plan]) -> None:
    from prefect_bt.cli.tables import Column, show_table
    from prefect_bt.workspace.limits import format_bytes

    for plan in plans:
        if terminal.documents:
            continue
        rows = [{"name": n, "size": format_bytes(s), "what": "goes"} for n, s in plan.going.items()]
        rows += [{"name": n, "size": "", "what": f"stays: {w}"} for n, w in plan.staying.items()]
        if rows:
            columns = [
                Column("Checkpoint Name", lambda row: row["name"]),
                Column("Size", lambda row: row["size"], solid=True),
                Column("What Happens", lambda row: row["what"], least=20),
            ]
            show_table(terminal, f"Checkpoints for job: {plan.record.id}", columns, rows)
        if plan.leftovers:
            terminal.say(f"As well: {counted(plan.leftovers, 'object')} that no checkpoint names.")
        terminal.say(_freed(plan, plan.freed, "Would free"))


def _freed(plan: _Plan, size: int, verb: str) -> str:
    from prefect_bt.workspace.limits import format_bytes

    text = f"{verb} {format_bytes(size)}"
    if plan.live and size:
        return f"{text}, once job {plan.record.id} is over and pruned again."
    return f"{text}."


def _close(
    terminal: Terminal,
    plans: list[_Plan],
    done: list[tuple[_Plan, Pruned]],
    dry_run: bool,
    output: str,
) -> int:
    """Tell what was done, with what others needed in the last moment."""
    for plan, pruned in done:
        for name, holders in pruned.held.items():
            if name in plan.going:
                del plan.going[name]
                plan.staying[name] = f"needed by {holders[0].who}"
        for name in pruned.protected:
            plan.going.pop(name, None)
            plan.staying[name] = "the running job would go on from it"
        for key in pruned.unreadable:
            terminal.warn(
                f"{key} is no manifest, so nobody knows which objects it needs and none were "
                "deleted. Restore it, or prune that checkpoint."
            )
        plan.freed = pruned.freed
        text = f"Job {plan.record.id}: {counted(len(pruned.names), 'checkpoint')} deleted. "
        terminal.say(text + _freed(plan, pruned.freed, "Freed"), style="green")
    if output == "json":
        terminal.document(_document(plans, dry_run))
    elif not done:
        terminal.say("Nothing was deleted." if dry_run else "Nothing is to be deleted.")
    return OK


def _document(plans: list[_Plan], dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "freed_bytes": sum(plan.freed for plan in plans),
        "jobs": [
            {
                "job_id": plan.record.id,
                "running": plan.live,
                "deleted": [
                    {"checkpoint_id": name, "size_bytes": size} for name, size in plan.going.items()
                ],
                "kept": [{"checkpoint_id": name, "why": why} for name, why in plan.staying.items()],
                "leftover_objects": plan.leftovers,
                "freed_bytes": plan.freed,
            }
            for plan in plans
        ],
    }
