"""Restore committed checkpoints on a node, before a retry or for `load_checkpoint_config`.

Before the commands of a retry run, the checkpoint directory holds the newest committed versions of
this rank, of the checkpoints that the job had at the end of its last attempt.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.checkpoints.committed.download import (
    STAGING,
    apply_metadata,
    clear_staging,
    download_files,
    file_matches,
    find_matching,
    open_or_create,
    set_folder_times,
)
from prefect_bt.checkpoints.committed.pointer_changes import find_pointer_changes
from prefect_bt.checkpoints.committed.restore_selection import (
    Disk,
    LeftInStore,
    Selection,
    measure_missing,
    read_present,
    select_fitting,
    select_present,
)
from prefect_bt.checkpoints.layout import ROOT, FileStat, join_checkpoint_path
from prefect_bt.checkpoints.manifest import PERMISSION_MASK, Manifest, ManifestEntry, read_manifest
from prefect_bt.checkpoints.volume_links import VolumeMounts, Volumes
from prefect_bt.checkpoints.watch.grouping import group_by_checkpoint
from prefect_bt.checkpoints.watch.scanner import MAX_DEPTH
from prefect_bt.errors import CheckpointError
from prefect_bt.filesystem.confined import (
    TreeEntry,
    folder_fd,
    open_file,
    open_regular,
    walk_tree,
)
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import LoadedCheckpoint

LOST: Final = "lost+found"


@dataclass(frozen=True)
class RestoreTarget:
    """A node of an attempt, and its folders."""

    rank: int
    directory: Path
    aside_dir: Path
    """Folder for files that are not restored ones; outside `directory`."""
    attempt: int = 0
    group_size: int = 1
    mounts: VolumeMounts = ()
    """The node's volumes, which links may lead into; nothing is written through a link."""
    neighbors: Mapping[int, Path] = field(default_factory=dict[int, Path])
    """Checkpoint directories of the gang's other ranks on the same disk."""
    roots: tuple[str, ...] = ()
    """Absolute paths of `directory` in the node."""


@dataclass(frozen=True)
class RestoreResult:
    """Sorted checkpoint names: found in place, restored (in part or whole), moved away."""

    unchanged: tuple[str, ...]
    restored: tuple[str, ...]
    moved_aside: tuple[str, ...]
    """Names of checkpoints without any committed file, else paths of single files."""
    downloaded_bytes: int = field(default=0, compare=False)
    left: tuple[LeftInStore, ...] = ()
    pointers: tuple[str, ...] = ()
    """Sentences about pointer files that have another text than the committed one."""


def restore_directory(
    store: Store, *, project_id: str, job_id: str, target: RestoreTarget
) -> RestoreResult:
    """Make the directory hold exactly the committed checkpoints that restore_selection.py selects.

    A checkpoint that lacks another rank's part is left out, so that all ranks resume from the same
    step. Files in place are hashed, since size and time prove nothing after a crash. Other files
    move to `aside_dir`; nothing is deleted. Safe to kill and to repeat. Raises StoreError,
    CheckpointError for a corrupt object and for a full disk, OSError of the disk.
    """
    directory, rank = target.directory, target.rank
    directory.mkdir(parents=True, exist_ok=True)
    clear_staging(directory)
    committed = list_checkpoints(store, project_id, job_id)
    present = read_present(
        store, project_id, job_id, before=target.attempt, group_size=target.group_size
    )
    selection = select_present(committed, present)
    volumes = Volumes(directory, target.mounts)
    links = {found.path for found in _iter_entries(directory) if found.is_link}
    candidates = _desired_files(_parts_of(selection, rank))
    behind = {path for path in candidates if _is_below_any(path, links)}
    right = find_matching(volumes, {p: e for p, e in candidates.items() if p not in behind})
    disk = Disk(directory, target.neighbors)
    missing_bytes = {
        one.checkpoint_id: measure_missing(one, rank=rank, in_place=right | behind, disk=disk)
        for one in selection.chosen
    }
    selection = select_fitting(selection, missing_bytes, store=store, disk=disk)
    manifests = _parts_of(selection, rank)
    wanted = _desired_files(manifests)
    pointers = find_pointer_changes(
        store,
        {path: entry for path, entry in wanted.items() if path not in behind},
        names=[one.checkpoint_id for one in selection.chosen],
        left=[one.name for one in selection.left],
        roots=(str(directory), *target.roots),
    )
    entries = {path: wanted.pop(path) for path in pointers}
    right = {path for path in right if wanted.get(path) == candidates[path]}
    files = [found.path for found in _iter_entries(directory) if not found.is_link]
    strays = [path for path in files if path not in right]
    _move_aside(strays, directory, target.aside_dir)
    for path in right:
        _apply_metadata(directory, path, wanted[path])
    missing = {path: e for path, e in wanted.items() if path not in right | behind}
    download_files(store, missing, root=directory)
    # Links last: their targets have their final contents by now.
    wrong = _find_wrong_links(volumes, sorted(links), wanted)
    _move_aside(wrong, directory, target.aside_dir)
    lost = {p: e for p, e in wanted.items() if p in behind and _is_below_any(p, set(wrong))}
    download_files(store, lost, root=directory)
    for path, change in pointers.items():
        if change.after is not None:
            _write_text(directory, path, change.after, mode=entries[path].mode)
    set_folder_times(directory, wanted)
    result = _restore_result(manifests, {*missing, *lost, *pointers}, [*strays, *wrong])
    return replace(
        result,
        downloaded_bytes=sum(entry.size for entry in (*missing.values(), *lost.values())),
        left=selection.left,
        pointers=tuple(map(str, pointers.values())),
    )


def _write_text(directory: Path, path: str, text: str, *, mode: int) -> None:
    parent, _, name = path.rpartition("/")
    partial = f".prefect-bt-{os.urandom(16).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open_or_create(directory, parent) as folder:
        with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "wb") as writer:
            writer.write(text.encode())
            os.fchmod(writer.fileno(), mode & PERMISSION_MASK)
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)


def _parts_of(selection: Selection, rank: int) -> list[Manifest]:
    """Return the rank's parts, in the order of their commits."""
    return [part for one in selection.chosen for part in one.manifests if part.rank == rank]


def load_checkpoints(
    store: Store, loaded: Sequence[LoadedCheckpoint], *, directory: Path, group_size: int
) -> None:
    """Download checkpoints of other jobs into the directory `BT_LOAD_CHECKPOINT_DIR`.

        <directory>/rank-<n>/<name>/...     the part of every rank, on every node
        <directory>/<name>                  on a single node, a link to the part of rank 0

    Raises CheckpointError if two checkpoints have different bytes for one path, and StoreError.
    """
    wanted: dict[str, ManifestEntry] = {}
    names: list[str] = []
    for checkpoint in loaded:
        for key in checkpoint.manifests:
            manifest = read_manifest(store, key)
            if manifest.rank == 0:
                names.append(manifest.name)
            for path, entry in _desired_files([manifest]).items():
                _add_entry(wanted, f"rank-{manifest.rank}/{path}", entry)
    directory.mkdir(parents=True, exist_ok=True)
    right = find_matching(Volumes(directory), wanted)
    download_files(store, {p: e for p, e in wanted.items() if p not in right}, root=directory)
    set_folder_times(directory, wanted)
    if group_size == 1:
        for name in names:
            _link_leader_files(directory, name)


def _add_entry(desired: dict[str, ManifestEntry], path: str, entry: ManifestEntry) -> None:
    before = desired.setdefault(path, entry)
    if before.sha256 != entry.sha256:
        raise CheckpointError(
            f"Two checkpoints to load both have {path}: {before.logical} and {entry.logical}.",
            next_step="Load one of them, or copy one under another name.",
            path=path,
        )


def _link_leader_files(directory: Path, name: str) -> None:
    tops = [name] if name != ROOT else [p.name for p in (directory / "rank-0").iterdir()]
    for top in tops:
        parent, _, last = top.rpartition("/")
        target = os.path.relpath(f"rank-0/{top}", parent or ".")
        # If another entry has the name, the checkpoint is at its documented path only.
        with open_or_create(directory, parent) as folder, suppress(FileExistsError):
            os.symlink(target, last, dir_fd=folder)


def _desired_files(manifests: Sequence[Manifest]) -> dict[str, ManifestEntry]:
    """Return the entries by path; of manifests in the order of their commits, the last counts."""
    wanted: dict[str, ManifestEntry] = {}
    for manifest in manifests:
        for entry in manifest.entries:
            wanted[join_checkpoint_path(manifest.name, entry.path)] = entry
    folders = {folder for path in wanted for folder in _ancestors(path)}
    # A file that has become a folder: only one of the two can exist.
    return {path: entry for path, entry in wanted.items() if path not in folders}


def _ancestors(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _is_below_any(path: str, tops: Collection[str]) -> bool:
    return path in tops or any(folder in tops for folder in _ancestors(path))


def _iter_entries(directory: Path) -> Iterator[TreeEntry]:
    """Yield every path that is not a folder, including links, which are not followed.

    A folder deeper than any checkpoint's is yielded in place of its contents.
    """
    for found in walk_tree(directory, max_depth=MAX_DEPTH + 1):
        if found.path.partition("/")[0] in {STAGING, LOST}:
            continue
        if not found.is_folder or found.path.count("/") >= MAX_DEPTH:
            yield found


def _find_wrong_links(
    volumes: Volumes, links: Sequence[str], desired: Mapping[str, ManifestEntry]
) -> list[str]:
    """Return the links that hide a wanted byte, or that lead to no wanted file."""
    seen: dict[str, dict[str, ManifestEntry]] = {link: {} for link in links}
    for path, entry in desired.items():
        for place in (path, *_ancestors(path)):
            if place in seen:
                seen[place][path] = entry
    return [
        link
        for link, behind in seen.items()
        if not behind or not all(file_matches(volumes, p, entry) for p, entry in behind.items())
    ]


def _apply_metadata(directory: Path, path: str, entry: ManifestEntry) -> None:
    descriptor = open_file(directory, path)
    try:
        apply_metadata(descriptor, entry)
    finally:
        os.close(descriptor)


def _move_aside(paths: Sequence[str], directory: Path, aside_dir: Path) -> None:
    for path in paths:
        parent, _, name = path.rpartition("/")
        aside_dir.mkdir(parents=True, exist_ok=True)
        with folder_fd(directory, parent) as source, open_or_create(aside_dir, parent) as target:
            _rename(name, source, target)
    _remove_empty_folders(directory)


def _unused_name(name: str, within: int) -> str:
    """Return a name that no entry of the folder has."""
    number, free = 0, name
    while True:
        try:
            os.stat(free, dir_fd=within, follow_symlinks=False)
        except FileNotFoundError:
            return free
        number += 1
        free = f"{name}.{number}"


def _rename(name: str, source: int, target: int) -> None:
    """Move the entry `name` from one open folder to another."""
    free = _unused_name(name, target)
    try:
        os.rename(name, free, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(name, source, free, target)
        os.unlink(name, dir_fd=source)


def _copy(name: str, source: int, free: str, target: int) -> None:
    """Copy the entry to another file system. Pipes and the like have no contents to keep."""
    facts = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), free, dir_fd=target)
    elif stat.S_ISREG(facts.st_mode):
        partial = f".prefect-bt-{os.urandom(16).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            os.fdopen(open_regular(name, within=source), "rb") as reader,
            os.fdopen(os.open(partial, flags, 0o600, dir_fd=target), "wb") as writer,
        ):
            shutil.copyfileobj(reader, writer)
            writer.flush()
            os.fchmod(writer.fileno(), facts.st_mode & PERMISSION_MASK)
            os.utime(writer.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
        os.rename(partial, free, src_dir_fd=target, dst_dir_fd=target)


def _remove_empty_folders(directory: Path) -> None:
    """Remove empty folders, which would look like rotated checkpoints."""
    folders = [
        found.path for found in walk_tree(directory, max_depth=MAX_DEPTH + 1) if found.is_folder
    ]
    for path in reversed(folders):
        parent, _, name = path.rpartition("/")
        if path not in {STAGING, LOST}:
            with suppress(OSError), folder_fd(directory, parent) as within:
                os.rmdir(name, dir_fd=within)


def _restore_result(
    manifests: Sequence[Manifest], fetched: set[str], moved: list[str]
) -> RestoreResult:
    names = {manifest.name for manifest in manifests}
    restored = {
        manifest.name
        for manifest in manifests
        if any(
            join_checkpoint_path(manifest.name, entry.path) in fetched for entry in manifest.entries
        )
    }
    strays = group_by_checkpoint(dict.fromkeys(moved, FileStat(0, 0)))
    aside = {name for name in strays if name not in names and name != ROOT}
    for name in strays.keys() - aside:
        found = strays[name]
        aside.update(
            join_checkpoint_path(name, inner) for inner in (*found.files, *found.temporary_files)
        )
    return RestoreResult(
        unchanged=tuple(sorted(names - restored)),
        restored=tuple(sorted(restored)),
        moved_aside=tuple(sorted(aside)),
    )
