"""`prefect-bt checkpoints prune`: delete committed checkpoints."""

from __future__ import annotations

from typing import Final

from prefect_bt.cli.jobs.selection import get_reconciled_state, select_jobs
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
from prefect_bt.errors import UsageError
from prefect_bt.job_service.store_service import no_jobs_error
from prefect_bt.jobs.prune_checkpoints import PrunePlan, check_names, execute_prune, plan_prune
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import RetentionPolicy
from prefect_bt.settings import Settings
from prefect_bt.workspace.limits import format_bytes

_COLUMNS: Final = [
    Column("Checkpoint Name", "checkpoint_id"),
    Column("Size", "size_bytes", lambda size: "" if size is None else format_bytes(size)),
    Column("Action", "why", lambda why: f"keep: {why}" if why else "delete", wrap=True),
]


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
        step = "Give --job-id or --project."
        raise UsageError("checkpoints prune needs a job or a project.", next_step=step)
    ledger = open_ledger()
    records = select_jobs(ledger, which, terminal)
    if not records:
        raise no_jobs_error(ledger.store.url, which.selected_project)
    policy = RetentionPolicy(keep_last, keep_every)
    with terminal.spinner("Reading the manifests"):
        plans = [
            plan_prune(
                ledger,
                record,
                policy,
                checkpoint_name,
                is_running=not get_reconciled_state(ledger, record.id, terminal).terminal,
            )
            for record in records
        ]
    check_names(plans, checkpoint_name)
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
            pruned = execute_prune(ledger, plan, settings=Settings())
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


def _show(terminal: Terminal, plans: list[PrunePlan]) -> None:
    for plan in plans:
        document = plan.to_document()
        if rows := document["deleted"] + document["kept"]:
            show_table(terminal, f"Checkpoints for job: {plan.record.id}", _COLUMNS, rows)
        if plan.orphan_objects:
            terminal.echo(f"Unreferenced objects to delete: {plan.orphan_objects}.")
        terminal.echo(_format_freed(plan, "Would free"))


def _format_freed(plan: PrunePlan, verb: str) -> str:
    later = f" when job {plan.record.id} has ended and is pruned again"
    when = later if plan.is_running and plan.freed_bytes else ""
    return f"{verb} {format_bytes(plan.freed_bytes)}{when}."
