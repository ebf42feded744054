"""`prefect-bt checkpoints verify`: read every committed byte again and hash it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, format_count

if TYPE_CHECKING:
    from prefect_bt.checkpoints.committed.verify_committed import VerificationReport
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord


def verify_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: Annotated[
        tuple[str, ...], Parameter(help="Only this one; may be given several times.")
    ] = (),
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Re-hash all committed files of a job, by default of the newest one.

    Names every object that is missing or not what was committed, and ends with 1 if there is one.

    `prefect-bt checkpoints verify --job-id abc1234`
    """
    from prefect_bt.checkpoints.committed.verify_committed import ExpectedObjects
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    names = _resolve_names(ledger, record, checkpoint_name)
    promises = ExpectedObjects(ledger.store, record.project_id, record.id, names=names)
    with byte_progress(terminal, "Verifying", promises.size) as tick:
        report = promises.verify(on_bytes=tick)
    if output == "json":
        terminal.print_json(_document(record.id, report))
    else:
        _print_report(terminal, record.id, report)
    return FAILED if report.failures else OK


def _resolve_names(ledger: Ledger, record: JobRecord, names: tuple[str, ...]) -> set[str]:
    """Names of the wanted, which may be given by id; from keys, so that a broken one is found."""
    if not names:
        return set()
    from prefect_bt.checkpoints.committed.catalog import resolve_names
    from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs

    refs = iter_manifest_refs(ledger.store, record.project_id, record.id)
    return set(resolve_names(record.id, {ref.name for ref in refs}, names))


def _print_report(terminal: Terminal, job_id: str, report: VerificationReport) -> None:
    from prefect_bt.workspace.limits import format_bytes

    for fault in report.failures:
        terminal.error(fault.message)
    checkpoints = format_count(report.checkpoints, "checkpoint")
    read = f"{checkpoints}, {format_count(report.objects, 'object')}, {format_bytes(report.size)}"
    if not report.checkpoints:
        terminal.warn(f"No checkpoints found for training job {job_id}.")
    elif report.failures:
        bad = {(fault.manifest, fault.path) for fault in report.failures}
        word = "1 file is" if len(bad) == 1 else f"{len(bad)} files are"
        terminal.echo(f"Job {job_id}: {word} not what was committed, of {read}.", style="red")
    else:
        terminal.echo(f"Job {job_id}: {read}: all as committed.", style="green")


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
