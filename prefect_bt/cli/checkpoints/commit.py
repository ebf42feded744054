"""`prefect-bt checkpoints commit`: commit checkpoints that a job left on this machine."""

from __future__ import annotations

from prefect_bt.checkpoints.committed.catalog import resolve_names
from prefect_bt.checkpoints.uncommitted import commit_command
from prefect_bt.cli.jobs.selection import get_reconciled_state, select_job
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.jobs.commit_kept import KeptCommit, commit_kept, list_kept
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings
from prefect_bt.workspace.limits import format_bytes


def commit_checkpoints(
    *name: str,
    which: JobFilter = NO_FILTER,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Commit what the final flush of an ended job did not commit and kept on this machine.

    Without names, every complete checkpoint is committed. A checkpoint that is named is committed
    as it is, even if it is incomplete; `checkpoints list` then shows why as its note. Run the
    command on the machine of the node. Exits with 1 if a complete or named checkpoint could not be
    committed.

    Args:
        name: Checkpoint to commit as it is, by name or ID. Repeatable.

    Examples:

    `prefect-bt checkpoints commit --job-id abc1234`

    `prefect-bt checkpoints commit --job-id abc1234 checkpoint-240`
    """
    ledger, settings = open_ledger(), Settings()
    record = select_job(ledger, which, terminal)
    get_reconciled_state(ledger, record.id, terminal)
    kept = list_kept(ledger, record, settings)
    names = {one.local.name for one in kept}
    wanted = resolve_names(record.id, names, name)
    result = KeptCommit()
    if kept:
        size = sum(one.local.size for one in kept if not wanted or one.local.name in wanted)
        with byte_progress(terminal, "Committing", size) as tick:
            result = commit_kept(
                ledger, record, kept, names=wanted, settings=settings, on_bytes=tick
            )
    terminal.print_result(_document(record.id, result), lambda: _show(terminal, record.id, result))
    return FAILED if result.has_failed else OK


def _document(job_id: str, result: KeptCommit) -> Document:
    return {
        "job_id": job_id,
        "committed": [
            {
                "rank": one.rank,
                "checkpoint_id": one.name,
                "size_bytes": one.size,
                "note": one.note or None,
            }
            for one in result.committed
        ],
        "unchanged": [
            {"rank": one.rank, "checkpoint_id": one.local.name} for one in result.unchanged
        ],
        "uncommitted": [
            {
                "rank": one.rank,
                "checkpoint_id": one.name,
                "why": one.reason,
                "kept_in": one.kept_in,
            }
            for one in result.left
        ],
        "removed": [str(path) for path in result.removed],
    }


def _show(terminal: Terminal, job_id: str, result: KeptCommit) -> None:
    for one in result.committed:
        note = f", as it is: {one.note}" if one.note else ""
        size = format_bytes(one.size)
        terminal.echo(f"Committed: rank {one.rank}, {one.name} ({size}){note}", style="green")
    for one in result.left:
        terminal.warn(f"Not committed: rank {one.rank}, {one.name}: {one.reason}")
    if result.left:
        terminal.echo(f"Commit one as it is: {commit_command(job_id)} NAME")
    elif not result.committed:
        terminal.echo(f"Job {job_id} has no uncommitted checkpoint on this machine.")
    for path in result.removed:
        terminal.echo(f"Everything in {path} is in the store: the folder was removed.")
