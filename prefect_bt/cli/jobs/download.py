"""`prefect-bt download`: download the files that a job was pushed with."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

from prefect_bt.attempts.lifecycle import plan_workspace
from prefect_bt.cli.ui.options import InjectedTerminal, Remote
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import StoreError, WorkspaceError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.workspace.unpack import unpack_workspace


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
        _download_workspace(ledger, record, target, unpack=not no_unzip)
    terminal.echo(f"Training job data downloaded to {target}", style="green")
    return OK


def folder_name(record: JobRecord) -> str:
    """Return `<project>_<job>` as one path component, with `-` for blanks and slashes."""
    project = re.sub(r"[\s/\0]", "-", record.project_name)
    return f"{project}_{record.id}"


def check_absent(target: Path) -> None:
    """Raise WorkspaceError if `target` exists."""
    if target.exists() or target.is_symlink():
        raise WorkspaceError(
            f"{str(target)!r} exists already.",
            next_step="Remove it, or give another --target-directory.",
            path=str(target),
        )


def _download_workspace(ledger: Ledger, record: JobRecord, target: Path, *, unpack: bool) -> None:
    """Create the folder `target`, or the archive without `unpack`; nothing if that fails.

    Raise StoreError for a corrupt archive, WorkspaceError for a job without files.
    """
    key = plan_workspace(record).key
    if not key:
        raise WorkspaceError(f"Job {record.id} was pushed without files.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".prefect-bt-") as folder:
        archive = Path(folder) / "workspace.tar"
        ledger.store.download(key, archive)
        _verify_digest(ledger, record, archive, key)
        if unpack:
            unpack_workspace(archive, target)
        else:
            archive.rename(target)


def _verify_digest(ledger: Ledger, record: JobRecord, archive: Path, key: str) -> None:
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != record.workspace_sha256:
        raise StoreError(
            f"The files of job {record.id} are corrupt: the digest of {key} differs.",
            url=ledger.store.url,
            key=key,
            next_step="Restore the object from a backup of the store.",
        )
