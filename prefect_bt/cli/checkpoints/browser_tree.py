"""The files of a job's checkpoints as folders: pure.

<checkpoint>/<file>             where only rank 0 wrote
<checkpoint>/rank-<n>/<file>    else
<file>                          of the checkpoint `.`, whose folder is the top
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint
from prefect_bt.checkpoints.layout import join_checkpoint_path


@dataclass(eq=False)
class FolderNode:
    """`size` in bytes and `file_count` of the files in it, however deep. The top has no name."""

    name: str = ""
    parent: FolderNode | None = field(default=None, repr=False)
    folders: dict[str, FolderNode] = field(default_factory=dict["str", "FolderNode"])
    files: dict[str, CheckpointFile] = field(default_factory=dict[str, CheckpointFile])
    checkpoint: CommittedCheckpoint | None = None
    size: int = 0
    file_count: int = 0

    @property
    def path(self) -> str:
        """From the top; "" for the top itself."""
        above = self.parent.path if self.parent else ""
        return f"{above}/{self.name}" if above else self.name

    def ensure_folder(self, path: str) -> FolderNode:
        """The folder at `path` from here, made if need be; "" is this one."""
        here = self
        for part in path.split("/") if path else ():
            here = here.folders.setdefault(part, FolderNode(part, here))
        return here

    def add_file(self, path: str, file: CheckpointFile) -> None:
        """Put a file at `path` from here, once."""
        folder, _, name = path.rpartition("/")
        here = self.ensure_folder(folder)
        if name in here.files:
            return
        here.files[name] = file
        above: FolderNode | None = here
        while above is not None:
            above.size += file.size
            above.file_count += 1
            above = above.parent


def build_tree(checkpoints: Sequence[CommittedCheckpoint]) -> FolderNode:
    """The top folder, with every file of every checkpoint below."""
    top = FolderNode()
    for checkpoint in checkpoints:
        name = checkpoint.checkpoint_id
        folder = top.ensure_folder("" if name == "." else name)
        folder.checkpoint = checkpoint
        alone = {manifest.rank for manifest in checkpoint.manifests} == {0}
        for file in checkpoint.files():
            inside = file.path.removeprefix(join_checkpoint_path(name, ""))
            folder.add_file(inside if alone else f"rank-{file.rank}/{inside}", file)
    return top
