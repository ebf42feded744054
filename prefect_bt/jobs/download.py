"""Download the workspace of a job from the store."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from prefect_bt.attempts.lifecycle import plan_workspace
from prefect_bt.errors import StoreError, WorkspaceError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.workspace.unpack import unpack_workspace


def download_workspace(ledger: Ledger, record: JobRecord, target: Path, *, unpack: bool) -> None:
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
