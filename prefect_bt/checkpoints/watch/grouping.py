"""Group the files of a directory into checkpoints, and update the groups file by file. Pure.

    <dir>/file                        part of the checkpoint `.`
    <dir>/epoch=3-step=30.ckpt        a checkpoint that is a file
    <dir>/checkpoint-10/...           `checkpoint-10`: a folder named after a step
    <dir>/v0-2025/checkpoint-10/...   `v0-2025/checkpoint-10`, at any depth (ms-swift)
    <dir>/exp/merged/config.json ...  `exp/merged`: a folder whose files mark it as a model
    <dir>/runs/...                    `runs`: any other top-level folder, with its remaining files
    <dir>/tmp-checkpoint-10/...       no checkpoint yet: a temporary name (HF Trainer)

The innermost folder named after a step wins, except for the shards that DeepSpeed puts into the
checkpoint around it; then the outermost model folder, so the parts of a pipeline
(`unet/config.json`) stay with the pipeline; then a folder whose name ends in a step, such as the
run `qwen-lr2e-5-epoch3`. A checkpoint is in one top-level folder, so each of these is grouped by
itself, and a changed file costs no more than its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prefect_bt.checkpoints.formats.deepspeed import is_tag_folder
from prefect_bt.checkpoints.formats.hugging_face import is_marker_file, is_model_folder
from prefect_bt.checkpoints.layout import (
    ROOT,
    WHOLE_FILE,
    FileStat,
    FileTree,
    LocalCheckpoint,
    has_step,
    is_checkpoint_file,
    is_file_variant,
    is_state_file,
    is_step_folder,
    is_temporary,
    split_file_suffix,
)


class CheckpointPath(NamedTuple):
    """A file's checkpoint, its path in the checkpoint, and whether it is temporary."""

    name: str
    inner: str
    is_temporary: bool


@dataclass(frozen=True)
class FolderMarks:
    """Marks of folders, from the files directly in each. The directory itself is `""`."""

    models: frozenset[str] = frozenset()
    """Folders that their files mark as a model."""
    states: frozenset[str] = frozenset()
    """Folders with a state of a training."""
    file_checkpoints: frozenset[tuple[str, str]] = frozenset()
    """Folder and suffix of files that are checkpoints."""


def mark_folders(paths: Iterable[str]) -> FolderMarks:
    """Return the marks of the folders of these files."""
    names: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, set()).add(name)
    return FolderMarks(
        models=frozenset(folder for folder, inside in names.items() if is_model_folder(inside)),
        states=frozenset(
            folder
            for folder, inside in names.items()
            if any(is_state_file(name) and not is_checkpoint_file(name) for name in inside)
        ),
        file_checkpoints=frozenset(
            (folder, split_file_suffix(name)[1])
            for folder, inside in names.items()
            for name in inside
            if is_checkpoint_file(name)
        ),
    )


def find_checkpoint(path: str, marks: FolderMarks) -> CheckpointPath:
    """Return the checkpoint of `path`."""
    *folders, name = path.split("/")
    prefixes = ["/".join(folders[: i + 1]) for i in range(len(folders))]
    depth, is_checkpoint_folder = _checkpoint_depth(folders, prefixes, marks)
    temporary = next((i for i, folder in enumerate(folders) if is_temporary(folder)), None)
    if temporary is not None and temporary < depth:
        return _inside(prefixes[temporary], path, is_temporary=True)
    is_unfinished = temporary is not None or is_temporary(name)
    if not is_checkpoint_folder and not is_unfinished and _is_own_checkpoint(path, marks):
        return CheckpointPath(path, WHOLE_FILE, is_temporary=False)
    return _inside(prefixes[depth - 1] if depth else ROOT, path, is_temporary=is_unfinished)


def group_by_checkpoint(tree: FileTree) -> dict[str, LocalCheckpoint]:
    """Return every checkpoint by name; a temporary folder is one without files."""
    marks = mark_folders(tree)
    checkpoints: dict[str, LocalCheckpoint] = {}
    for path, stat in tree.items():
        name, inner, temporary = find_checkpoint(path, marks)
        checkpoint = checkpoints.setdefault(name, LocalCheckpoint(name))
        (checkpoint.temporary_files if temporary else checkpoint.files)[inner] = stat
    return checkpoints


def top_level_folder(path: str) -> str:
    """Return the top-level folder; empty for a file directly in the directory."""
    top, slash, _ = path.partition("/")
    return top if slash else ""


def _inside(name: str, path: str, *, is_temporary: bool) -> CheckpointPath:
    return CheckpointPath(name, path if name == ROOT else path[len(name) + 1 :], is_temporary)


def _checkpoint_depth(
    folders: list[str], prefixes: list[str], marks: FolderMarks
) -> tuple[int, bool]:
    """Return the number of leading folders in the checkpoint's name, and whether the folder is
    recognized as a checkpoint."""
    inner_first = [
        index
        for index in reversed(range(len(folders)))
        if not _is_shard_folder(index, folders, prefixes, marks)
    ]
    for index in inner_first:
        if is_step_folder(folders[index]):
            return index + 1, True
    if not folders:
        return 0, "" in marks.models
    model = next((i for i, prefix in enumerate(prefixes) if prefix in marks.models), None)
    run = next((index for index in inner_first if has_step(folders[index])), None)
    if run is not None and (model is None or run > model or prefixes[run] in marks.states):
        return run + 1, prefixes[run] in marks.states
    return (1, False) if model is None else (model + 1, True)


def _is_shard_folder(
    index: int, folders: list[str], prefixes: list[str], marks: FolderMarks
) -> bool:
    """Return whether the folder holds DeepSpeed's shards of the checkpoint around it."""
    if index == 0 or not is_tag_folder(folders[index]):
        return False
    return is_step_folder(folders[index - 1]) or prefixes[index - 1] in marks.models


def _is_own_checkpoint(path: str, marks: FolderMarks) -> bool:
    """Return whether a file outside of any checkpoint's folder is a checkpoint."""
    folder, _, name = path.rpartition("/")
    is_variant = (folder, split_file_suffix(name)[1]) in marks.file_checkpoints
    return is_checkpoint_file(name) or (is_variant and is_file_variant(name))


class TopLevelFolder:
    """Checkpoints of one top-level folder, or of files in none; unchanged ones stay the same."""

    def __init__(self, files: FileTree | None = None) -> None:
        self.files: dict[str, FileStat] = dict(files or {})
        self.checkpoints: dict[str, LocalCheckpoint] = {}
        self._marks = FolderMarks()
        self._regroup()

    def replace(self, files: FileTree) -> bool:
        """Replace all files; return whether that changes anything."""
        if files == self.files:
            return False
        self.files = dict(files)
        self._regroup()
        return True

    def update(self, changes: Mapping[str, FileStat | None]) -> bool:
        """Set some files, None for deleted ones; return whether that changes anything."""
        changed = {path: stat for path, stat in changes.items() if self.files.get(path) != stat}
        regroup = False
        for path, stat in changed.items():
            came_or_went = stat is None or path not in self.files
            regroup = regroup or (came_or_went and self._may_mark(path, is_new=stat is not None))
            if stat is None:
                self.files.pop(path, None)
            else:
                self.files[path] = stat
        if regroup:
            self._regroup()
        elif changed:
            self._apply(changed)
        return bool(changed)

    def _apply(self, changed: Mapping[str, FileStat | None]) -> None:
        opened: dict[str, LocalCheckpoint] = {}
        for path, stat in changed.items():
            name, inner, temporary = find_checkpoint(path, self._marks)
            if name not in opened:
                before = self.checkpoints.get(name, LocalCheckpoint(name))
                opened[name] = LocalCheckpoint(
                    name, dict(before.files), dict(before.temporary_files)
                )
            files = opened[name].temporary_files if temporary else opened[name].files
            if stat is None:
                files.pop(inner, None)
            else:
                files[inner] = stat
        for name, checkpoint in opened.items():
            if checkpoint.files or checkpoint.temporary_files:
                self.checkpoints[name] = checkpoint
            else:
                self.checkpoints.pop(name, None)

    def _regroup(self) -> None:
        self._marks = mark_folders(self.files)
        fresh = group_by_checkpoint(self.files)
        # The same object where nothing changed: comparing it again costs nothing.
        kept = {name: old for name, old in self.checkpoints.items() if fresh.get(name) == old}
        self.checkpoints = fresh | kept

    def _may_mark(self, path: str, *, is_new: bool) -> bool:
        """Return whether a file that came or went may change the marks of its folder."""
        folder, _, name = path.rpartition("/")
        marks = self._marks
        if is_marker_file(name) and not (is_new and folder in marks.models):
            return True
        if is_checkpoint_file(name):
            return not (is_new and (folder, split_file_suffix(name)[1]) in marks.file_checkpoints)
        return is_state_file(name) and not (is_new and folder in marks.states)
