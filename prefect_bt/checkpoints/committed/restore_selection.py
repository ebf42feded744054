"""Select the committed checkpoints that a node gets back before a retry.

A trainer keeps the newest ones (`save_total_limit`) and the store keeps all. So a node gets those
that the job's nodes had at the end of their last attempt, as their uploaders reported it, and of
these the newest that fit on its disk: never fewer than the one to resume from. Nothing is deleted
from the store.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final
from urllib.parse import unquote

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, select_newest
from prefect_bt.checkpoints.committed.download import STAGING
from prefect_bt.checkpoints.layout import get_series, join_checkpoint_path
from prefect_bt.checkpoints.upload.upload_status import UploadStatusReader, escape_surrogates
from prefect_bt.errors import CheckpointError
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.quantities import format_size

_MAX_MARGIN: Final = 1_000_000_000
_MARGIN_SHARE: Final = 0.05
"""The smaller limit holds: 1 GB on a disk of 20 GB and more, 5 % of a smaller one."""
_FICLONE: Final = 0x40049409


@dataclass(frozen=True)
class LeftInStore:
    """A checkpoint that is not restored. `size` in bytes, of all ranks; `reason` is a phrase."""

    name: str
    size: int
    reason: str


@dataclass(frozen=True)
class Disk:
    """The disk that the checkpoints are restored to."""

    directory: Path
    neighbors: Mapping[int, Path] = field(default_factory=dict[int, Path])
    """Checkpoint directories of the gang's other ranks on the same disk, which restore, too."""


@dataclass(frozen=True)
class Selection:
    """Checkpoints to restore, oldest first; `required` is the one to resume from."""

    chosen: tuple[CommittedCheckpoint, ...] = ()
    left: tuple[LeftInStore, ...] = ()
    required: str = ""


def read_present(
    store: Store, project_id: str, job_id: str, *, before: int, group_size: int
) -> set[str] | None:
    """Return the names that the ranks' directories had when they last ran; None: not known.

    `before`: the attempt that starts now. A rank counts with its newest attempt that reported.
    Names are escaped as in a status. Raise StoreError.
    """
    present: dict[int, tuple[str, ...]] = {}
    for attempt in reversed(range(before)):
        for upload in UploadStatusReader(store, project_id, job_id, attempt).read():
            if upload.rank < group_size and upload.status.present is not None:
                present.setdefault(upload.rank, upload.status.present)
        if len(present) == group_size:
            break
    return {name for names in present.values() for name in names} if present else None


def select_present(committed: Sequence[CommittedCheckpoint], present: set[str] | None) -> Selection:
    """Select what the nodes had, out of `committed` (oldest first). The same on every rank.

    Of a series whose newest checkpoints were not committed, the newest committed one is selected.
    """
    complete = [one for one in committed if not one.missing_ranks]
    required = select_newest(complete)
    wanted = {one.checkpoint_id for one in complete}
    if present is not None:
        series = {get_series(name) for name in present}
        newest = {get_series(_escaped(one)): one.checkpoint_id for one in complete}
        wanted = {one.checkpoint_id for one in complete if _escaped(one) in present}
        wanted |= {name for line, name in newest.items() if line in series}
        wanted |= {required.checkpoint_id} if required else set()
    left = [
        _leave(one, one.missing_part.removesuffix(".") or "the training had deleted them")
        for one in committed
        if one.checkpoint_id not in wanted
    ]
    chosen = tuple(one for one in complete if one.checkpoint_id in wanted)
    return Selection(chosen, tuple(left), required.checkpoint_id if required else "")


def select_fitting(
    selection: Selection, missing: Mapping[str, int], *, store: Store, disk: Disk
) -> Selection:
    """Return the newest checkpoints of `selection` that fit on the disk.

    `missing`: bytes to download, by name. Raise CheckpointError if `required` does not fit.
    """
    if not any(missing.values()) or _shares_blocks(store, disk.directory):
        return selection
    usage = shutil.disk_usage(disk.directory)
    # What a neighbor has downloaded in part is counted as missing in full.
    free = usage.free + sum(map(_staged_bytes, disk.neighbors.values()))
    needed = missing.get(selection.required, 0)
    if needed > free:
        raise _too_large(selection.required, needed, free, store, disk.directory)
    margin = int(min(_MAX_MARGIN, _MARGIN_SHARE * usage.total))
    left, kept = free - needed - margin, {selection.required}
    for one in reversed(selection.chosen):
        size = missing.get(one.checkpoint_id, 0)
        if one.checkpoint_id not in kept and (size == 0 or size <= left):
            kept.add(one.checkpoint_id)
            left -= size
    reason = (
        f"the disk of {disk.directory} has {format_size(free)} free, of which "
        f"{format_size(margin)} stay free for the job"
    )
    return Selection(
        tuple(one for one in selection.chosen if one.checkpoint_id in kept),
        (
            *selection.left,
            *(_leave(one, reason) for one in selection.chosen if one.checkpoint_id not in kept),
        ),
        selection.required,
    )


def measure_missing(
    checkpoint: CommittedCheckpoint, *, rank: int, in_place: Collection[str], disk: Disk
) -> int:
    """Return the bytes that this rank and its neighbors have to download.

    `in_place`: paths that are correct already in this rank's directory. A neighbor's are compared
    by their sizes.
    """
    missing = 0
    for part in checkpoint.manifests:
        for entry in part.entries:
            path = join_checkpoint_path(part.name, entry.path)
            if part.rank == rank:
                missing += 0 if path in in_place else entry.size
            elif part.rank in disk.neighbors:
                missing += entry.size - _size_in(disk.neighbors[part.rank] / path, most=entry.size)
    return missing


def _size_in(path: Path, *, most: int) -> int:
    with suppress(OSError):
        return most if path.lstat().st_size == most else 0
    return 0


def _staged_bytes(directory: Path) -> int:
    """Return the bytes of the files that a neighbor is downloading."""
    staged = 0
    with suppress(OSError):
        for path in (directory / STAGING).iterdir():
            staged += path.lstat().st_size
    return staged


def _escaped(checkpoint: CommittedCheckpoint) -> str:
    return escape_surrogates(checkpoint.checkpoint_id)


def _leave(checkpoint: CommittedCheckpoint, reason: str) -> LeftInStore:
    return LeftInStore(checkpoint.checkpoint_id, checkpoint.size, reason)


def _too_large(name: str, needed: int, free: int, store: Store, directory: Path) -> CheckpointError:
    steps = f"Free {format_size(needed - free)} there, or use a machine with a larger disk"
    if _is_on_disk_of(store, directory):
        steps += "; the store is on the same disk, so `prefect-bt checkpoints prune` frees space"
    return CheckpointError(
        f"The checkpoint {name}, from which the job resumes, does not fit on the disk of "
        f"{directory}: {format_size(needed)} are needed and {format_size(free)} are free.",
        next_step=f"{steps}.",
        path=str(directory),
    )


def _is_on_disk_of(store: Store, directory: Path) -> bool:
    if not store.url.startswith("file:"):
        return False
    folder = Path(unquote(store.url.removeprefix("file://")))
    with suppress(OSError):
        return folder.stat().st_dev == directory.stat().st_dev
    return False


def _shares_blocks(store: Store, directory: Path) -> bool:
    """Return whether files of a store on the same disk are restored without new blocks."""
    if _is_on_disk_of(store, directory):
        with (
            suppress(OSError),
            TemporaryFile(dir=directory) as source,
            TemporaryFile(dir=directory) as target,
        ):
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
            return True
    return False
