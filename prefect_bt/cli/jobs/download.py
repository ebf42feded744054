"""`prefect-bt download`: download the files that a job was pushed with."""

from __future__ import annotations

import re
from pathlib import Path

from prefect_bt.cli.ui.options import InjectedTerminal, Remote
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import WorkspaceError
from prefect_bt.job_service.protocol import JobName
from prefect_bt.jobs.download import download_workspace
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord


def download(
    *,
    job_id: str,
    target_directory: Path | None = None,
    no_unzip: bool = False,
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """Create the folder `<project>_<job>` with the files, or `<project>_<job>.tgz`.

    Args:
        job_id: ID of the job.
        target_directory: Directory in which to create it; default: the current directory.
        no_unzip: Keep the archive packed.

    Examples:

    `prefect-bt download --job-id abc1234`
    """
    ledger = open_ledger()
    record = ledger.get_job(job_id)
    name = folder_name(record)
    target = (target_directory or Path.cwd()).absolute() / (f"{name}.tgz" if no_unzip else name)
    check_absent(target)
    with terminal.spinner(f"Downloading the files of job {job_id}"):
        download_workspace(ledger, record, target, unpack=not no_unzip)
    terminal.echo(f"Training job data downloaded to {target}", style="green")
    return OK


def folder_name(job: JobName | JobRecord) -> str:
    """Return `<project>_<job>` as one path component, with `-` for blanks and slashes."""
    project = re.sub(r"[\s/\0]", "-", job.project_name)
    return f"{project}_{job.id}"


def check_absent(target: Path) -> None:
    """Raise WorkspaceError if `target` exists."""
    if target.exists() or target.is_symlink():
        raise WorkspaceError(
            f"{str(target)!r} exists already.",
            next_step="Remove it, or give another --target-directory.",
            path=str(target),
        )
