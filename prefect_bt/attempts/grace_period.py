"""What saving once more takes, by the newest checkpoint, and whether the time at hand allows it.

A job that is asked to stop may begin a last checkpoint: it must be written before the commands are
killed, and uploaded before the machine is gone. Both are measured, not guessed: the time from a
checkpoint's first file to its last, and the bytes a second of its upload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, find_newest
from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.manifest import ManifestRef, load_manifest
from prefect_bt.checkpoints.upload.upload_status import UploadStatusReader
from prefect_bt.errors import ObjectNotFound
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store.protocols import Store

SAFETY_FACTOR: Final = 1.5
"""The next one is taken to need so much longer: the machine is busy when everything stops."""
MAX_GRACE: Final = 600.0
MAX_VERSIONS: Final = 8
"""That one save is looked for in."""


@dataclass(frozen=True)
class SaveEstimate:
    """Seconds, and bytes of the largest rank. `notice`: what the machine gives, None: not known."""

    name: str
    size: int
    write: float
    """0.0 for a checkpoint of one file, which tells nothing of how long it was written."""
    upload: float | None
    """None before anything was uploaded."""
    grace: float
    """Between the polite and the forced signal, for a stop."""
    notice: float | None = None

    @property
    def total_seconds(self) -> float:
        return self.write + (self.upload or 0.0)

    @property
    def warning(self) -> str:
        """One sentence and what to do; "" when it fits."""
        if self.notice is not None and self.total_seconds > self.notice:
            return (
                f"{self.name} took {self.write:.0f} s to write and {self.upload or 0:.0f} s to "
                f"upload; this machine gives {self.notice:.0f} s before it stops, so a last "
                "checkpoint will not be saved. Save more often, or smaller checkpoints."
            )
        if self.write > self.grace:
            return (
                f"{self.name} took {self.write:.0f} s to write; a stop gives "
                f"{self.grace:.0f} s, so a last checkpoint would be incomplete. Raise "
                "PREFECT_BT_GRACE."
            )
        return ""


@dataclass(frozen=True)
class PriorFiles:
    """`attempt_started_at` in epoch seconds; `files`: rank, path, nanoseconds of earlier files."""

    attempt_started_at: float = 0.0
    files: frozenset[tuple[int, str, int]] = frozenset()


NO_PRIOR_FILES: Final = PriorFiles()


def estimate_save(
    checkpoint: CommittedCheckpoint,
    rates: Mapping[int, float],
    *,
    grace: float,
    notice: float | None = None,
    prior: PriorFiles = NO_PRIOR_FILES,
) -> SaveEstimate:
    """`rates`: rank -> bytes a second of its uploads, where known; `grace` as configured.

    What was there `prior` and stayed as it was, or was copied with its old time, does not count.
    """
    spans, uploads, sizes = [0.0], list[float](), [0]
    for part in checkpoint.manifests:
        times = [
            entry.mtime_ns
            for entry in part.entries
            if entry.mtime_ns > prior.attempt_started_at * 1e9
            and (part.rank, entry.path, entry.mtime_ns) not in prior.files
        ]
        spans.append((max(times) - min(times)) / 1e9 if times else 0.0)
        sizes.append(part.size)
        if rate := rates.get(part.rank, 0.0):
            uploads.append(part.size / rate)
    return SaveEstimate(
        name=checkpoint.checkpoint_id,
        size=max(sizes),
        write=max(spans),
        upload=max(uploads, default=None),
        grace=choose_grace(max(spans), grace=grace, notice=notice),
        notice=notice,
    )


def find_save_estimate(
    ledger: Ledger, record: JobRecord, *, grace: float, notice: float | None
) -> SaveEstimate | None:
    """As measure_last_save, by what the job's store tells now; None before a first commit."""
    best, attempts = (
        find_newest(ledger.store, record.project_id, record.id),
        ledger.list_attempts(record.id),
    )
    if best is None or not attempts:
        return None
    uploads = UploadStatusReader(
        ledger.store, record.project_id, record.id, attempts[-1].attempt
    ).read()
    rates = {one.rank: one.status.rate for one in uploads}
    began = [one.at for one in attempts if one.attempt == best.attempt]
    return estimate_save(
        best,
        rates,
        grace=grace,
        notice=notice,
        prior=PriorFiles(max(began, default=0.0), _find_prior_files(ledger.store, best)),
    )


def _find_prior_files(
    store: Store, checkpoint: CommittedCheckpoint
) -> frozenset[tuple[int, str, int]]:
    """Rank, path and time of what was there before this save began."""
    files: set[tuple[int, str, int]] = set()
    refs = list(iter_manifest_refs(store, checkpoint.project_id, checkpoint.job_id))
    for part in checkpoint.manifests:
        now = {(entry.path, entry.mtime_ns) for entry in part.entries}
        older = [
            ref
            for ref in refs
            if (ref.rank, ref.name) == (part.rank, part.name)
            and ref.sort_key < (part.attempt, part.version)
        ]
        files |= {(part.rank, *file) for file in _previous_version_files(store, older, now)}
    return frozenset(files)


def _previous_version_files(
    store: Store, older: Iterable[ManifestRef], now: set[tuple[str, int]]
) -> set[tuple[str, int]]:
    """The files of the last version that something was changed of since.

    Versions to which files were only added are of the same save: it was slow, and they were
    committed while it went on.
    """
    for ref in sorted(older, key=lambda ref: ref.sort_key, reverse=True)[:MAX_VERSIONS]:
        with suppress(ObjectNotFound):  # pruned in this moment
            entries = load_manifest(store.get(ref.key), key=ref.key).entries
            then = {(entry.path, entry.mtime_ns) for entry in entries}
            if not then <= now:
                return then
    return set()


def choose_grace(write: float, *, grace: float, notice: float | None) -> float:
    """The configured grace, or longer where a checkpoint takes longer; never past the notice."""
    wanted = max(grace, min(math.ceil(SAFETY_FACTOR * write), MAX_GRACE))
    return wanted if notice is None else max(0.0, min(wanted, notice))
