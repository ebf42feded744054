"""Make files on disk what manifests say: keep what is right already, fetch the rest, verify both.

    <root>/<path>                    appears by one rename, after its bytes were hashed
    <root>/.prefect-bt-restore.tmp/  being fetched; the uploader does not look into it

Killed at any point and run again, it goes on where it was: a finished file is found to be right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.manifest import Entry
from prefect_bt.errors import CheckpointError
from prefect_bt.objects.protocols import Store

STAGING: Final = ".prefect-bt-restore.tmp"
_CHUNK: Final = 4 * 1024 * 1024
_WORKERS: Final = 4

Wanted = Mapping[str, Entry]
"""Path relative to the root -> what shall lie there."""


def matches(path: Path, entry: Entry) -> bool:
    """Whether the file has exactly the entry's bytes. Follows links; reads the whole file."""
    try:
        seen = path.stat()
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != entry.size:
            return False
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == entry.sha256
    except OSError:
        return False


def matching(root: Path, wanted: Wanted) -> set[str]:
    """The paths that are right already, whether or not a link leads to them."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        right = pool.map(matches, [root / path for path in wanted], wanted.values())
        return {path for path, is_right in zip(wanted, right, strict=True) if is_right}


def fetch(store: Store, wanted: Wanted, *, root: Path) -> None:
    """Put every wanted file below `root`, replacing what is there; no folder on the way is a link.

    Raises StoreError, or CheckpointError for an object whose bytes are not those committed.
    """
    if not wanted:
        return
    staging = root / STAGING
    clear_staging(root)
    staging.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(_WORKERS) as pool:
            jobs = [
                pool.submit(_fetch_one, store, entry, root / path, staging=staging / str(number))
                for number, (path, entry) in enumerate(wanted.items())
            ]
            try:
                for job in jobs:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()
    finally:
        clear_staging(root)


def clear_staging(root: Path) -> None:
    """Remove what a killed run left half fetched."""
    shutil.rmtree(root / STAGING, ignore_errors=True)


def set_facts(path: Path, entry: Entry) -> None:
    """Permission bits and modification time as committed: resumers sort folders by time."""
    path.chmod(entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def date_folders(root: Path, paths: Iterable[str]) -> None:
    """Folders as old as their newest file, so that the newest checkpoint looks newest."""
    newest: dict[Path, int] = {}
    for path in paths:
        modified = (root / path).stat().st_mtime_ns
        for folder in Path(path).parents[:-1]:
            newest[root / folder] = max(newest.get(root / folder, 0), modified)
    for folder, modified in newest.items():
        os.utime(folder, ns=(modified, modified))


def _fetch_one(store: Store, entry: Entry, target: Path, *, staging: Path) -> None:
    store.download(entry.key, staging)
    if not matches(staging, entry):
        raise CheckpointError(
            f"{entry.key} does not hold the bytes that were committed for {entry.logical}.",
            next_step="Restore the object from a backup, or delete this checkpoint and go back "
            "to an earlier one.",
            path=entry.logical,
            cause="digest mismatch",
        )
    set_facts(staging, entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging.replace(target)
