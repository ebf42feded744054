"""Committed checkpoints back onto a node: before a retry, and where a job asks to load others.

Decision 7: before a retry's commands the checkpoint directory holds exactly what the job has
committed for this rank, in the newest versions. All of it is brought back, also what the script had
rotated away: it costs the disk and the time of that, until a retention policy deletes old ones.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.checkpoints.catalogue import list_checkpoints
from prefect_bt.checkpoints.layout import ROOT, FileFact, checkpoints_in, join
from prefect_bt.checkpoints.manifest import Entry, Manifest, load
from prefect_bt.checkpoints.materialise import (
    STAGING,
    clear_staging,
    date_folders,
    fetch,
    matches,
    matching,
    set_facts,
)
from prefect_bt.errors import CheckpointError
from prefect_bt.objects.protocols import Store
from prefect_bt.plan import LoadedCheckpoint


@dataclass(frozen=True)
class Prepared:
    """Checkpoint names, sorted: found in place, brought back (in part or whole), moved away."""

    kept: tuple[str, ...]
    restored: tuple[str, ...]
    set_aside: tuple[str, ...]
    """Names of checkpoints none of which was committed, else paths of single files."""


def prepare_directory(  # noqa: PLR0913 (all of them name one place)
    store: Store, *, project_id: str, job_id: str, rank: int, directory: Path, aside: Path
) -> Prepared:
    """Make `directory` hold exactly the committed checkpoints of this rank.

    A checkpoint that lacks another rank's part is left out, so that all ranks go on from the same
    step. Files in place are hashed, since size and time prove nothing after a crash. What does not
    belong moves to `aside` (outside `directory`), nothing is deleted. Safe to kill and to repeat.
    Raises StoreError, CheckpointError for an object that is corrupt, OSError of the disk.
    """
    directory.mkdir(parents=True, exist_ok=True)
    clear_staging(directory)
    manifests = [
        manifest
        for checkpoint in list_checkpoints(store, project_id, job_id)
        if not checkpoint.missing_ranks
        for manifest in checkpoint.manifests
        if manifest.rank == rank
    ]
    wanted = _wanted(manifests)
    links = set(_links(directory))
    behind = {path for path in wanted if _below(path, links)}
    direct = {path: entry for path, entry in wanted.items() if path not in behind}
    right = matching(directory, direct)
    strays = [path for path in _files(directory) if path not in right]
    _move(strays, directory, aside)
    for path in right:
        set_facts(directory / path, direct[path])
    missing = {path: entry for path, entry in direct.items() if path not in right}
    fetch(store, missing, root=directory)
    # Links last: what they lead to is right by now, or is not going to be.
    wrong = _wrong_links(directory, sorted(links), wanted)
    _move(wrong, directory, aside)
    lost = {path: wanted[path] for path in behind if _below(path, set(wrong))}
    fetch(store, lost, root=directory)
    date_folders(directory, wanted)
    return _prepared(manifests, {*missing, *lost}, [*strays, *wrong])


def load_checkpoints(
    store: Store, loaded: Sequence[LoadedCheckpoint], *, directory: Path, group_size: int
) -> None:
    """Put checkpoints of other jobs where `BT_LOAD_CHECKPOINT_DIR` promises them (§9, §22.28).

        <directory>/rank-<n>/<name>/...     every rank's part, on every node
        <directory>/<name>                  on a single node, a link to rank 0's

    Two checkpoints that claim one path with different bytes are refused. Raises StoreError and
    CheckpointError.
    """
    wanted: dict[str, Entry] = {}
    names: list[str] = []
    for checkpoint in loaded:
        for key in checkpoint.manifests:
            manifest = load(store.get(key), key=key)
            if manifest.rank == 0:
                names.append(manifest.name)
            for path, entry in _wanted([manifest]).items():
                _claim(wanted, f"rank-{manifest.rank}/{path}", entry)
    directory.mkdir(parents=True, exist_ok=True)
    right = matching(directory, wanted)
    fetch(store, {p: e for p, e in wanted.items() if p not in right}, root=directory)
    date_folders(directory, wanted)
    if group_size == 1:
        for name in names:
            _link(directory, name)


def _claim(wanted: dict[str, Entry], path: str, entry: Entry) -> None:
    before = wanted.setdefault(path, entry)
    if before.sha256 != entry.sha256:
        raise CheckpointError(
            f"Two checkpoints to load both have {path}: {before.logical} and {entry.logical}.",
            next_step="Load one of them, or copy one under another name.",
            path=path,
        )


def _link(directory: Path, name: str) -> None:
    tops = [name] if name != ROOT else [p.name for p in (directory / "rank-0").iterdir()]
    for top in tops:
        link = directory / top
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(directory / "rank-0" / top, link.parent)
        if link.is_symlink() and str(link.readlink()) == target:
            continue
        if link.exists() or link.is_symlink():
            # Something else is there already; the documented place has the checkpoint.
            continue
        link.symlink_to(target)


def _wanted(manifests: Sequence[Manifest]) -> dict[str, Entry]:
    """Path in the directory -> entry. The manifests come in order of commit: the later wins."""
    wanted: dict[str, Entry] = {}
    for manifest in manifests:
        for entry in manifest.entries:
            wanted[join(manifest.name, entry.path)] = entry
    folders = {folder for path in wanted for folder in _ancestors(path)}
    # A file that has become a folder since: only one of the two can be there.
    return {path: entry for path, entry in wanted.items() if path not in folders}


def _ancestors(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _below(path: str, tops: Collection[str]) -> bool:
    return path in tops or any(folder in tops for folder in _ancestors(path))


def _entries(directory: Path) -> Iterator[tuple[str, bool]]:
    """Every path that is no folder, and whether it is a link; links are not followed."""
    for folder, folders, files in os.walk(directory):
        here = Path(folder)
        if here == directory and STAGING in folders:
            folders.remove(STAGING)
        if here == directory and "lost+found" in folders:
            folders.remove("lost+found")
        for name in (*folders, *files):
            path = here / name
            if path.is_symlink():
                yield path.relative_to(directory).as_posix(), True
            elif name in files:
                yield path.relative_to(directory).as_posix(), False


def _files(directory: Path) -> list[str]:
    return [path for path, is_link in _entries(directory) if not is_link]


def _links(directory: Path) -> list[str]:
    return [path for path, is_link in _entries(directory) if is_link]


def _wrong_links(directory: Path, links: Sequence[str], wanted: Mapping[str, Entry]) -> list[str]:
    """Links through which not every wanted byte is seen, or that nothing is wanted of."""
    wrong: list[str] = []
    for link in links:
        seen = {path: entry for path, entry in wanted.items() if _below(path, [link])}
        if not seen or not all(matches(directory / path, entry) for path, entry in seen.items()):
            wrong.append(link)
    return wrong


def _move(paths: Sequence[str], directory: Path, aside: Path) -> None:
    for path in paths:
        target = _free(aside / path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _rename(directory / path, target)
    _remove_empty(directory)


def _free(target: Path) -> Path:
    number, free = 0, target
    while free.exists() or free.is_symlink():
        number += 1
        free = target.with_name(f"{target.name}.{number}")
    return free


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        partial = target.with_name(f"{target.name}.part")
        if source.is_symlink() or not source.is_file():
            shutil.move(source, target)
            return
        shutil.copy2(source, partial)
        partial.replace(target)
        source.unlink()


def _remove_empty(directory: Path) -> None:
    """Empty folders are no checkpoints; a rotated folder would else look like one."""
    for folder, _, _ in os.walk(directory, topdown=False):
        path = Path(folder)
        if path != directory and path.name != "lost+found" and not any(path.iterdir()):
            path.rmdir()


def _prepared(manifests: Sequence[Manifest], fetched: set[str], moved: list[str]) -> Prepared:
    names = {manifest.name for manifest in manifests}
    restored = {
        manifest.name
        for manifest in manifests
        if any(join(manifest.name, entry.path) in fetched for entry in manifest.entries)
    }
    strays = checkpoints_in(dict.fromkeys(moved, FileFact(0, 0)))
    aside = {name for name in strays if name not in names and name != ROOT}
    for name in strays.keys() - aside:
        found = strays[name]
        aside.update(join(name, inner) for inner in (*found.files, *found.unfinished))
    return Prepared(
        kept=tuple(sorted(names - restored)),
        restored=tuple(sorted(restored)),
        set_aside=tuple(sorted(aside)),
    )
