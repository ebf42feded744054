"""Find git-LFS pointers among the files to pack: a node could not read their content."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.filesystem.lfs_pointer import MAX_POINTER_BYTES, describe_pointer
from prefect_bt.workspace.file_list import PackEntry
from prefect_bt.workspace.ignore import IGNORE_FILE

_WEIGHTS_SUFFIXES: Final = frozenset(
    (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".keras", ".msgpack", ".onnx")
)
_MAX_NAMED: Final = 5
"""Names in one message."""


def warn_about_pointers(entries: Sequence[PackEntry]) -> list[str]:
    """Return a sentence about git-LFS pointers, if there are any. WorkspaceError for weights."""
    found = dict[str, str]()
    for entry in entries:
        if entry.link is None and 0 < entry.size < MAX_POINTER_BYTES:
            with suppress(OSError):  # packing names a file that cannot be read
                if pointer := describe_pointer(entry.path.read_bytes()):
                    found[entry.name] = pointer
    weights = [name for name in found if PurePosixPath(name).suffix.lower() in _WEIGHTS_SUFFIXES]
    if weights:
        raise WorkspaceError(
            f"The workspace has git-LFS pointers instead of weights: {_format(weights, found)}.",
            next_step=f"Run `git lfs pull` and push again, or name the files in {IGNORE_FILE}.",
            path=weights[0],
        )
    text = f"Packed as git-LFS pointers, without their content: {_format([*found], found)}."
    return [f"{text} Run `git lfs pull` and push again if the job reads them."] if found else []


def _format(names: Sequence[str], found: dict[str, str]) -> str:
    more = len(names) - _MAX_NAMED
    listed = ", ".join(f"{name!r} ({found[name]})" for name in names[:_MAX_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed
