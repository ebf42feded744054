"""PyTorch's distributed checkpoints (DCP): a file for each process, the metadata last.

step-10/__<rank>_<n>.distcp, .metadata     .metadata names the files of every process
step-10/__<rank>.metadata                  where processes save independently (torchft)
checkpoint-10/pytorch_model_fsdp_0/...     inside a checkpoint of Trainer or Accelerate
epoch=0-step=10.ckpt/..., meta.pt          Lightning
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from prefect_bt.checkpoints.formats.protocol import Format, Inspection

_DISTCP: Final = re.compile(r"(.*/|)__(\d+)_\d+\.distcp", re.DOTALL)
_METADATA: Final = re.compile(r"(.*/|)__(\d+)\.metadata", re.DOTALL)


def find_distcp_ranks(paths: Collection[str]) -> dict[str, set[int]]:
    """Return the ranks of each distributed checkpoint by folder (`x/`, or empty)."""
    ranks: dict[str, set[int]] = {}
    for path in paths:
        if path.endswith(".distcp") and (match := _DISTCP.fullmatch(path)):
            ranks.setdefault(match[1], set()).add(int(match[2]))
    return ranks


def _find_missing(save: Inspection) -> str:
    own: dict[str, set[int]] = {}
    for path in save.files:
        if path.endswith(".metadata") and (match := _METADATA.fullmatch(path)):
            own.setdefault(match[1], set()).add(int(match[2]))
    for folder, ranks in find_distcp_ranks(save.files).items():
        has_all = f"{folder}.metadata" in save.files or ranks <= own.get(folder, set())
        if not has_all and (save.position.is_single_node or 0 in ranks):
            return f"{folder}.metadata is missing, which is written after the .distcp files"
    return ""


def _is_finished(save: Inspection) -> bool:
    """Return whether the folder has one distributed checkpoint only: else more files may follow."""
    files = save.saved_files
    metadata = files.get(".metadata")
    # Lightning's folder, named like a file, gets a meta.pt later.
    continues = not save.position.is_single_node or save.folder.endswith(".ckpt")
    if metadata is None or continues or not save.is_newest(metadata):
        return False
    return len(files) > 1 and all(path == ".metadata" or path.endswith(".distcp") for path in files)


DISTRIBUTED: Final = Format(
    title="PyTorch DCP, torchtitan, FSDP, Lightning with several processes",
    folders="`step-10`, `epoch=0-step=10.ckpt/`, or a folder in a checkpoint",
    end="`.metadata`, and the files that it names",
    state=re.compile(r".*\.distcp|.*\.metadata"),
    find_missing=_find_missing,
    is_finished=_is_finished,
)
