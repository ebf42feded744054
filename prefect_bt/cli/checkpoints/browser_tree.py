"""The files of a job's checkpoints as folders. Pure.

<checkpoint>/<file>             where only rank 0 wrote
<checkpoint>/rank-<n>/<file>    otherwise
<file>                          of the checkpoint `.`, which is the top folder
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
from prefect_bt.checkpoints.layout import join_checkpoint_path


@dataclass(eq=False)
class FolderNode:
    """A folder; the top one has no name. `size` (bytes) and `file_count` include all subfolders."""

    path: str = ""
    parent: FolderNode | None = field(default=None, repr=False)
    folders: dict[str, FolderNode] = field(default_factory=dict["str", "FolderNode"])
    files: dict[str, CheckpointFile] = field(default_factory=dict[str, CheckpointFile])
    checkpoint: CommittedCheckpoint | None = None
    size: int = 0
    file_count: int = 0

    def ensure_folder(self, path: str) -> FolderNode:
        """Return the folder at `path` below this one; "" and "." are this one."""
        folder = self
        for name in filter(None, path.removeprefix(".").split("/")):
            inner = f"{folder.path}/{name}" if folder.path else name
            folder = folder.folders.setdefault(name, FolderNode(inner, folder))
        return folder

    def add_file(self, path: str, file: CheckpointFile) -> None:
        """Put a file at `path` below this folder, unless there is one."""
        inside, _, name = path.rpartition("/")
        folder: FolderNode | None = self.ensure_folder(inside)
        if folder.files.setdefault(name, file) is not file:
            return
        while folder is not None:
            folder.size += file.size
            folder.file_count += 1
            folder = folder.parent


def build_tree(checkpoints: Sequence[CommittedCheckpoint]) -> FolderNode:
    """Return the top folder, with every file of every checkpoint below it."""
    top = FolderNode()
    for checkpoint in checkpoints:
        folder = top.ensure_folder(checkpoint.checkpoint_id)
        folder.checkpoint = checkpoint
        alone = {manifest.rank for manifest in checkpoint.manifests} == {0}
        prefix = join_checkpoint_path(checkpoint.checkpoint_id, "")
        for file in checkpoint.files():
            inside = file.path.removeprefix(prefix)
            folder.add_file(inside if alone else f"rank-{file.rank}/{inside}", file)
    return top
