"""`prefect-bt checkpoints verify`: read and hash every committed byte again."""

from __future__ import annotations

from typing import Any

from prefect_bt.checkpoints.committed.catalog import resolve_names
from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.committed.verify_committed import ExpectedObjects, VerificationReport
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import (
    NO_FILTER,
    CheckpointNames,
    InjectedTerminal,
    JobFilter,
    Output,
)
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.workspace.limits import format_bytes


def verify_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: CheckpointNames = (),
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Report each file of a job that is missing or corrupt; exit with 1 if there is one.

    The default is the newest job.

    Examples:

    `prefect-bt checkpoints verify --job-id abc1234`
    """

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    names = _resolve_names(ledger, record, checkpoint_name)
    expected = ExpectedObjects(ledger.store, record.project_id, record.id, names=names)
    with byte_progress(terminal, "Verifying", expected.size) as tick:
        report = expected.verify(on_bytes=tick)
    terminal.print_result(
        _document(record.id, report), lambda: _print_report(terminal, record.id, report)
    )
    return FAILED if report.failures else OK


def _resolve_names(ledger: Ledger, record: JobRecord, names: tuple[str, ...]) -> set[str]:
    """Return the names of checkpoints given by name or ID, including corrupt ones."""
    if not names:
        return set()

    refs = iter_manifest_refs(ledger.store, record.project_id, record.id)
    return set(resolve_names(record.id, {ref.name for ref in refs}, names))


def _print_report(terminal: Terminal, job_id: str, report: VerificationReport) -> None:

    for fault in report.failures:
        terminal.error(fault.message)
    checkpoints = format_count(report.checkpoints, "checkpoint")
    read = f"{checkpoints}, {format_count(report.objects, 'object')}, {format_bytes(report.size)}"
    if not report.checkpoints:
        terminal.warn(f"No checkpoints found for training job {job_id}.")
    elif report.failures:
        bad = {(fault.manifest, fault.path) for fault in report.failures}
        count = format_count(len(bad), "file")
        terminal.echo(f"Job {job_id}: {count} missing or corrupt, of {read}.", style="red")
    else:
        terminal.echo(f"Job {job_id}: {read}: all intact.", style="green")


def _document(job_id: str, report: VerificationReport) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "checkpoints": report.checkpoints,
        "objects": report.objects,
        "bytes": report.size,
        "faults": [
            {
                "manifest": fault.manifest,
                "checkpoint": fault.checkpoint,
                "rank": fault.rank,
                "path": fault.path,
                "key": fault.key,
                "what": fault.problem,
            }
            for fault in report.failures
        ],
    }
