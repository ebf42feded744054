"""`prefect-bt checkpoints verify`: read and hash every committed byte again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict

from prefect_bt.checkpoints.committed.catalog import (
    CommittedCheckpoint,
    list_checkpoints,
    resolve_names,
)
from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.committed.verify_committed import ExpectedObjects, VerificationReport
from prefect_bt.checkpoints.sync_status import find_incomplete
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
from prefect_bt.errors import CheckpointError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.workspace.limits import format_bytes


def verify_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: CheckpointNames = (),
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Report each file of a job that is missing or corrupt, and each checkpoint of an ended job
    that lacks the part of a rank; exit with 1 if there is one.

    The default is the newest job.

    Examples:

    `prefect-bt checkpoints verify --job-id abc1234`
    """
    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    place = ledger.store, record.project_id, record.id
    # A checkpoint with a corrupt manifest has a name too.
    known = {ref.name for ref in iter_manifest_refs(*place)}
    expected = ExpectedObjects(*place, names=resolve_names(record.id, known, checkpoint_name))
    with byte_progress(terminal, "Verifying", expected.size) as tick:
        report = expected.verify(on_bytes=tick)
    incomplete = _find_incomplete(ledger, record, expected.names)
    document = {
        "job_id": record.id,
        "checkpoints": report.checkpoints,
        "objects": report.objects,
        "bytes": report.size,
        "faults": [
            {"what" if key == "problem" else key: value for key, value in asdict(fault).items()}
            for fault in report.failures
        ],
        "incomplete": [
            {"checkpoint": one.checkpoint_id, "missing_ranks": list(one.missing_ranks)}
            for one in incomplete
        ],
    }
    terminal.print_result(document, lambda: _print_report(terminal, record.id, report, incomplete))
    return FAILED if report.failures or incomplete else OK


def _find_incomplete(
    ledger: Ledger, record: JobRecord, names: Collection[str]
) -> list[CommittedCheckpoint]:
    # A manifest that cannot be read is one of the report's failures.
    with suppress(CheckpointError):
        found = list_checkpoints(ledger.store, record.project_id, record.id)
        return find_incomplete(ledger, record, [one for one in found if one.checkpoint_id in names])
    return []


def _print_report(
    terminal: Terminal,
    job_id: str,
    report: VerificationReport,
    incomplete: Sequence[CommittedCheckpoint],
) -> None:
    for fault in report.failures:
        terminal.error(fault.message)
    for one in incomplete:
        terminal.error(f"checkpoint {one.checkpoint_id!r} is not complete: {one.missing_part}")
    checkpoints = format_count(report.checkpoints, "checkpoint")
    read = f"{checkpoints}, {format_count(report.objects, 'object')}, {format_bytes(report.size)}"
    if not report.checkpoints:
        terminal.warn(f"No checkpoints found for training job {job_id}.")
    elif report.failures:
        count = format_count(len({(one.manifest, one.path) for one in report.failures}), "file")
        terminal.echo(f"Job {job_id}: {count} missing or corrupt; checked {read}.", style="red")
    elif incomplete:
        count = format_count(len(incomplete), "checkpoint")
        terminal.echo(
            f"Job {job_id}: {read}: all intact, but {count} not complete; the job resumes from an "
            "earlier one.",
            style="red",
        )
    else:
        terminal.echo(f"Job {job_id}: {read}: all intact.", style="green")
