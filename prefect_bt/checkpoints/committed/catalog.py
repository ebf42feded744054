"""The committed checkpoints of a job: read from manifests, never from bare objects.

A checkpoint of a gang is the parts that its ranks committed under one name. The script
decides how many ranks write (often rank 0 alone), so the part of a rank counts as missing only

* if the previous sibling (`checkpoint-10` before `checkpoint-20`) has a part of that rank, or lacks
  it too, and the rank committed another sibling in the same attempt,
* and if the attempt that committed the checkpoint had that rank: after an elastic restart, fewer
  ranks write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prefect_bt.checkpoints.committed.commit_index import find_newest_refs
from prefect_bt.checkpoints.layout import (
    find_previous,
    get_series,
    join_checkpoint_path,
    parse_step,
)
from prefect_bt.checkpoints.manifest import Manifest, read_manifest
from prefect_bt.errors import NotFoundError, ObjectNotFound
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.number_ranges import format_ranks, natural_key
from prefect_bt.text.quantities import format_iso

_ID_LENGTH: Final = 8


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint. `path` is relative to the rank's checkpoint directory."""

    path: str
    logical_path: str
    rank: int
    key: str
    size: int
    sha256: str
    modified: float
    """Epoch seconds of the last write on the node."""


@dataclass(frozen=True)
class CommittedCheckpoint:
    """`checkpoint_id` is the folder's name, `created_at` epoch seconds, `size` all ranks' bytes."""

    id: str
    checkpoint_id: str
    project_id: str
    job_id: str
    created_at: float
    type: str
    base_model: str | None
    lora_adapter_config: dict[str, Any] | None
    size: int
    step: int | None
    attempt: int
    manifest_keys: dict[int, str]
    """Rank -> key of its newest manifest."""
    missing_ranks: tuple[int, ...] = ()
    note: str = ""
    """Parts that it lacks, if it was committed nevertheless."""
    manifests: tuple[Manifest, ...] = field(default=(), repr=False)
    """By rank."""

    @property
    def missing_part(self) -> str:
        """Return a sentence with the ranks whose part is missing; "" if there is none."""
        if not self.missing_ranks:
            return ""
        return f"{format_ranks(self.missing_ranks)} did not commit a part of it."

    @property
    def written_at(self) -> float:
        """Return when a file of it was last written, in epoch seconds of its node."""
        times = [entry.mtime_ns for manifest in self.manifests for entry in manifest.entries]
        return max(times, default=0) / 1e9 or self.created_at

    @property
    def newest_manifest(self) -> str:
        """Return the key of the part that was committed last."""
        return max(self.manifests, key=lambda part: (part.attempt, part.committed_at)).key

    def files(self) -> Iterator[CheckpointFile]:
        """Return every file of every rank, by rank and path."""
        for manifest in self.manifests:
            for entry in manifest.entries:
                yield CheckpointFile(
                    path=join_checkpoint_path(manifest.name, entry.path),
                    logical_path=entry.logical,
                    rank=manifest.rank,
                    key=entry.key,
                    size=entry.size,
                    sha256=entry.sha256,
                    modified=entry.mtime_ns / 1e9,
                )


def list_checkpoints(store: Store, project_id: str, job_id: str) -> list[CommittedCheckpoint]:
    """Return the newest version of every committed checkpoint of the job, oldest first.

    The order is that of the last writes on the nodes: after an error of the store, an older one can
    be committed later.
    Includes folders that hold no model (`type` empty). Raises StoreError, and CheckpointError for a
    manifest that cannot be read.
    """
    parts: dict[str, list[Manifest]] = {}
    gone: set[str] = set()
    for (_, name), ref in sorted(find_newest_refs(store, project_id, job_id).items()):
        try:
            parts.setdefault(name, []).append(read_manifest(store, ref.key))
        except ObjectNotFound:
            # Deleted between listing and reading, with the parts of its other ranks.
            gone.add(name)
    for name in gone:
        del parts[name]
    missing = _find_missing_ranks(parts)
    merged = [_merge_ranks(found, tuple(sorted(missing[name]))) for name, found in parts.items()]
    return sorted(merged, key=lambda one: (one.attempt, one.written_at, one.step or -1))


def _find_missing_ranks(parts: Mapping[str, Sequence[Manifest]]) -> dict[str, set[int]]:
    """Return the ranks whose part is missing, by checkpoint."""
    writers: dict[tuple[str, int], set[int]] = {}
    for name, found in parts.items():
        for part in found:
            writers.setdefault((get_series(name), part.attempt), set()).add(part.rank)
    missing: dict[str, set[int]] = {}
    for name in sorted(parts, key=lambda name: parse_step(name) or -1):
        newest = max(parts[name], key=lambda part: (part.attempt, part.group_size))
        expected = set[int]()
        if previous := find_previous(name, parts):
            skipped = missing[previous] & writers[get_series(name), newest.attempt]
            expected = {part.rank for part in parts[previous]} | skipped
        there = {part.rank for part in parts[name]}
        missing[name] = {rank for rank in expected - there if rank < newest.group_size}
    return missing


def find_newest(store: Store, project_id: str, job_id: str) -> CommittedCheckpoint | None:
    """Return the checkpoint to resume from: the newest committed one with all ranks' parts.

    Prefer a model, adapter or folder named after a step to other folders (logs, event files).
    None if there is no committed checkpoint.
    """
    return select_newest(list_checkpoints(store, project_id, job_id))


def select_newest(checkpoints: Iterable[CommittedCheckpoint]) -> CommittedCheckpoint | None:
    """Return the checkpoint to resume from out of all of a job, oldest first."""
    found = [one for one in checkpoints if not one.missing_ranks]
    models = [one for one in found if one.type or one.step is not None]
    return (models or found or [None])[-1]


def resolve_names(job_id: str, available: Collection[str], names: Collection[str]) -> list[str]:
    """Return the names for `names`, names or ids; NotFoundError lists the `available` ones."""
    ids = {short_id(job_id, name): name for name in available}
    found = [one if one in available else ids.get(one, "") for one in names]
    for one, name in zip(names, found, strict=True):
        if not name:
            listed = ", ".join(sorted(available, key=natural_key)) or "none"
            raise NotFoundError("checkpoint", one, next_step=f"Job {job_id} has: {listed}.")
    return found


def checkpoint_document(checkpoint: CommittedCheckpoint) -> dict[str, Any]:
    """Return the JSON record of a checkpoint (docs/compatibility.md, Checkpoints)."""
    return {
        "id": checkpoint.id,
        "checkpoint_id": checkpoint.checkpoint_id,
        "training_job_id": checkpoint.job_id,
        "created_at": format_iso(checkpoint.created_at),
        "checkpoint_type": checkpoint.type or None,
        "base_model": checkpoint.base_model,
        "lora_adapter_config": checkpoint.lora_adapter_config,
        "size_bytes": checkpoint.size,
        "sync_status": "SYNCING" if checkpoint.missing_ranks else "COMPLETE",
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "note": checkpoint.note or None,
    }


def _merge_ranks(parts: list[Manifest], missing: tuple[int, ...]) -> CommittedCheckpoint:
    parts = sorted(parts, key=lambda part: part.rank)
    first = parts[0]
    typed = next((part for part in parts if part.type), first)
    steps = [part.step for part in parts if part.step is not None]
    return CommittedCheckpoint(
        id=short_id(first.job_id, first.name),
        checkpoint_id=first.name,
        project_id=first.project_id,
        job_id=first.job_id,
        created_at=max(part.committed_at for part in parts),
        type=typed.type,
        base_model=typed.base_model,
        lora_adapter_config=typed.lora_adapter_config,
        size=sum(part.size for part in parts),
        step=max(steps) if steps else None,
        attempt=max(part.attempt for part in parts),
        manifest_keys={part.rank: part.key for part in parts},
        missing_ranks=missing,
        note="; ".join(dict.fromkeys(part.note for part in parts if part.note)),
        manifests=tuple(parts),
    )


def short_id(job_id: str, name: str) -> str:
    """Return an id that is the same for every version and attempt of a name in one job."""
    text = f"{job_id}/{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:_ID_LENGTH]
