"""Commit one settled checkpoint: complete? -> hash and send -> unchanged? -> manifest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from prefect_bt.checkpoints.committed.commit_index import CommitIndex
from prefect_bt.checkpoints.committed.tombstones import discard_outdated
from prefect_bt.checkpoints.formats.decision import STILL_WRITING, Decision, Evidence, decide
from prefect_bt.checkpoints.formats.hugging_face import CheckpointMetadata
from prefect_bt.checkpoints.formats.inspector import Inspector
from prefect_bt.checkpoints.formats.protocol import GangPosition
from prefect_bt.checkpoints.formats.table import EarlierCheckpoint
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint
from prefect_bt.checkpoints.manifest import (
    Manifest,
    ManifestEntry,
    UploadOrigin,
    manifest_format,
    rank_objects_prefix,
)
from prefect_bt.checkpoints.portable_json import to_portable_json, to_portable_text
from prefect_bt.checkpoints.retention.policy import select_prunable
from prefect_bt.checkpoints.retention.prune import prune_rank
from prefect_bt.checkpoints.upload.progress import UploadProgress
from prefect_bt.checkpoints.upload.transfer import (
    DigestCache,
    TransferContext,
    UploadPools,
    upload_checkpoint,
)
from prefect_bt.checkpoints.volume_links import RecentFolders, Volumes
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.ledger.records import RetentionPolicy
from prefect_bt.object_store.protocols import Store


@dataclass(frozen=True)
class Uncommitted:
    """Why the store does not have a checkpoint. `reason` is a phrase for people."""

    reason: str
    is_changing: bool = False
    """Whether its files still change, so that a later scan may commit it."""


CHANGING: Final = Uncommitted(STILL_WRITING, is_changing=True)


class CheckpointCommitter:
    """Commits checkpoints of one rank, in one thread. Methods raise StoreError, CheckpointError."""

    def __init__(  # noqa: PLR0913 (all of them are one uploader's)
        self,
        store: Store,
        *,
        volumes: Volumes,
        origin: UploadOrigin,
        is_unchanged: Callable[[LocalCheckpoint], bool],
        progress: UploadProgress,
        retention: RetentionPolicy,
        fence: Callable[[], object] = lambda: None,
    ) -> None:
        """Set up.

        `is_unchanged`: whether a checkpoint is unchanged; `fence`: as in UploadOptions.
        """
        self._fence = fence
        self._store, self._volumes, self._origin = store, volumes, origin
        self._is_unchanged, self._progress, self._retention = is_unchanged, progress, retention
        place = GangPosition(origin.rank, origin.group_size)
        self._inspector = Inspector(volumes, position=place, on_work=progress.add_work)
        self._digests, self._pools = DigestCache(), UploadPools()
        self._committed: CommitIndex | None = None
        self._stored_bytes: dict[str, int] = {}
        """Name -> largest number of its bytes that were stored at one time."""

    @property
    def progress_counter(self) -> int:
        """Return a counter that grows with new bytes in the store, but not with repeated ones."""
        return (self._committed.count if self._committed else 0) + sum(self._stored_bytes.values())

    def examine(self, checkpoint: LocalCheckpoint) -> Evidence:
        """Return what the checkpoint's files say. Files that cannot be read say nothing."""
        if checkpoint.files and self._committed and self._committed.is_committed(checkpoint):
            # Nothing to wait for: what the training deletes of it now stays in the store.
            return Evidence(has_ended=True, is_repeated=True)
        with contextlib.suppress(OSError):
            return self._inspector.examine(checkpoint, self._earlier_checkpoints(checkpoint.name))
        return Evidence()

    def commit(
        self,
        checkpoint: LocalCheckpoint,
        *,
        previous: LocalCheckpoint | None,
        quiet: float = float("inf"),
        as_it_is: bool = False,
    ) -> Manifest | Uncommitted | None:
        """Return the new manifest, None if the store has this content, or why it is not
        committed.

        `previous`: the files that this uploader committed before under that name. `quiet`: seconds
        since the last change; infinite where the writer's end is known or decided. `as_it_is`:
        commit an incomplete checkpoint too, with the reason as its note.
        """
        if self._committed is None:
            self._committed = self._open_index()
        committed = self._committed
        if checkpoint.files and _is_committed(checkpoint, committed, previous):
            return None
        if checkpoint.name in select_prunable([*committed.names, checkpoint.name], self._retention):
            return None
        decision = self._decide(checkpoint, quiet, as_it_is=as_it_is)
        if isinstance(decision, Uncommitted):
            return decision
        if as_it_is:
            checkpoint = _readable(checkpoint)
        self._progress.begin(checkpoint.name, checkpoint.size)
        context, finished = self._transfer_context(committed), False
        try:
            entries = upload_checkpoint(context, checkpoint)
            kind = self._read_metadata(checkpoint) if entries is not None else None
            if entries is None or kind is None or not self._is_unchanged(checkpoint):
                return CHANGING
            manifest = self._write_manifest(committed, checkpoint, entries, kind, decision.note)
            finished = True
        finally:
            self._stored_bytes[checkpoint.name] = max(
                self._stored_bytes.get(checkpoint.name, 0), context.meter.total
            )
            if not finished:
                self._progress.discard_current()
        if manifest is None:
            self._progress.mark_unchanged(checkpoint.name)
            return None
        self._progress.mark_committed(checkpoint.name, lag=time.time() - checkpoint.ctime_ns / 1e9)
        self._apply_retention(committed)
        return manifest

    def is_committed(self, checkpoint: LocalCheckpoint) -> bool:
        """Return whether the newest commit of the name has all these files, by size and time."""
        if self._committed is None:
            self._committed = self._open_index()
        return self._committed.is_committed(checkpoint)

    def retain(self, paths: Mapping[str, object]) -> None:
        """Forget the facts of files that are gone."""
        self._digests.retain(paths)
        self._inspector.retain(paths)

    def abort_unfinished_uploads(self) -> None:
        """Remove the parts of uploads that will not be finished."""
        self._abort_uploads([self._origin.attempt])

    def raise_priority(self) -> None:
        """Raise the priority, because the job's end waits for the final flush."""
        self._pools.close()
        self._pools = UploadPools(urgent=True)

    def close(self) -> None:
        self._pools.close()

    def _open_index(self) -> CommitIndex:
        prunes = not self._retention.keeps_all
        self._fence()
        # No later attempt continues those: the attempt is in an object's key.
        self._abort_uploads(range(self._origin.attempt))
        if prunes:
            # Finish the prune that a kill interrupted.
            prune_rank(self._store, self._origin, (), fence=self._fence)
        else:
            discard_outdated(self._store, self._origin.project_id, self._origin.job_id)
        # Read last, so that objects deleted just now are not reused.
        return CommitIndex(self._store, self._origin, own_objects_only=prunes)

    def _abort_uploads(self, attempts: Iterable[int]) -> None:
        # A failed clean-up must not delay the end of the job.
        with contextlib.suppress(StoreError):
            for attempt in attempts:
                prefix = rank_objects_prefix(self._origin, attempt)
                for upload in self._store.list_unfinished_uploads(prefix):
                    self._store.abort_upload(upload)

    def _transfer_context(self, committed: CommitIndex) -> TransferContext:
        return TransferContext(
            store=self._store,
            origin=self._origin,
            folders=RecentFolders(self._volumes),
            pools=self._pools,
            digests=self._digests,
            index=committed,
            on_progress=self._progress.update_transfer,
        )

    def _earlier_checkpoints(self, name: str) -> list[EarlierCheckpoint]:
        if self._committed is None:
            return []
        return [
            EarlierCheckpoint(
                manifest.name,
                {entry.path: FileStat(entry.size, entry.mtime_ns) for entry in manifest.entries},
                is_same_attempt=manifest.attempt == self._origin.attempt,
            )
            for manifest in self._committed.find_references(name)
        ]

    def _decide(
        self, checkpoint: LocalCheckpoint, quiet: float, *, as_it_is: bool
    ) -> Decision | Uncommitted:
        """Return the decision to commit, or why not."""
        try:
            earlier = self._earlier_checkpoints(checkpoint.name)
            evidence = self._inspector.examine(checkpoint, earlier)
        except (FileNotFoundError, NotADirectoryError):
            return CHANGING
        except OSError as error:
            raise CheckpointError(
                f"a file cannot be read: {error}", rank=self._origin.rank, cause=str(error)
            ) from error
        decision = decide(evidence, quiet=quiet, rhythm=0.0)
        if as_it_is and _is_utf8(checkpoint.name):
            return Decision(note=decision.reason or decision.note)
        return decision if decision.is_commit else Uncommitted(decision.reason)

    def _read_metadata(self, found: LocalCheckpoint) -> CheckpointMetadata | None:
        try:
            return self._inspector.read_metadata(found)
        except OSError:
            return None

    def _write_manifest(
        self,
        committed: CommitIndex,
        found: LocalCheckpoint,
        entries: tuple[ManifestEntry, ...],
        kind: CheckpointMetadata,
        note: str,
    ) -> Manifest | None:
        """Return None if the newest commit has the same content."""
        if committed.has_content(found.name, {entry.path: entry.sha256 for entry in entries}):
            return None
        origin = self._origin
        self._fence()
        return committed.commit(
            Manifest(
                format=manifest_format(entries),
                project_id=origin.project_id,
                job_id=origin.job_id,
                rank=origin.rank,
                group_size=origin.group_size,
                name=found.name,
                attempt=origin.attempt,
                version=1,
                committed_at=time.time(),
                size=sum(entry.size for entry in entries),
                entries=entries,
                type=kind.type,
                base_model=kind.base_model and to_portable_text(kind.base_model),
                lora_adapter_config=to_portable_json(kind.lora_adapter_config),
                step=kind.step,
                note=note,
            )
        )

    def _apply_retention(self, committed: CommitIndex) -> None:
        """Delete what the retention policy deletes; again after the next commit, if the
        store fails."""
        names = select_prunable(committed.names, self._retention)
        if not names:
            return
        try:
            self._fence()
            pruned = prune_rank(self._store, self._origin, names, fence=self._fence)
        except StoreError:
            # It is unknown what was deleted: the next checkpoint lists the store.
            self._committed = None
            return
        committed.discard(names=pruned.pruned, keys=pruned.deleted_keys)
        self._progress.update(pruned=(*self._progress.status.pruned, *pruned.pruned))


def _readable(checkpoint: LocalCheckpoint) -> LocalCheckpoint:
    """Return the checkpoint with its temporary files, and without those that must not be read."""
    everything = {**checkpoint.files, **checkpoint.temporary_files}
    return replace(
        checkpoint, files={path: fact for path, fact in everything.items() if not fact.error}
    )


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _is_committed(
    found: LocalCheckpoint, committed: CommitIndex, seen: LocalCheckpoint | None
) -> bool:
    """Compare by times with commits of a former uploader, exactly with those of this one."""
    return committed.is_committed(found) and (
        seen is None or found is seen or found.files.items() <= seen.files.items()
    )
