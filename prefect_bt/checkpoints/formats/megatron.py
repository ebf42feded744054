"""Checkpoints of Megatron-LM, NeMo and verl, which keep a file that names the newest iteration.

iter_0000010/mp_rank_00/model_optim_rng.pt, distrib_optim.pt    Megatron-LM
iter_0000010/common.pt, *.distcp, .metadata                     its distributed format
global_step_10/actor/model_world_size_<n>_rank_<r>.pt           verl: model, optim, extra_state
latest_checkpointed_iteration.txt                               beside the folder, at the end
name--step=9-last/weights/..., name--step=9-unfinished          NeMo: a file that goes at the end
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from prefect_bt.checkpoints.formats.pointers import rewrite_number
from prefect_bt.checkpoints.formats.protocol import Format, Inspection
from prefect_bt.checkpoints.layout import parse_step

LATEST_ITERATION: Final = "latest_checkpointed_iteration.txt"
_FOLDER: Final = re.compile(r"(?:iter_|global_step_)\d+")
_STATE: Final = (
    r"(?:.*/)?(?:model_optim_rng\.pt|distrib_optim\.pt|common\.pt|metadata\.json|data\.pt)"
    r"|.*(?:model|optim|extra_state)_world_size_\d+_rank_\d+\.pt"
)
_SAVED_FILE: Final = re.compile(rf"{_STATE}|.*\.distcp", re.DOTALL)
_WORLD_FILE: Final = re.compile(r"(.*)_world_size_(\d+)_rank_(\d+)(\.\w+)", re.DOTALL)


def _unfinished_marker(folder: str) -> str:
    stem = folder.removesuffix(".ckpt").removesuffix("-last")
    return f"../{stem}-unfinished"


def _trackers(folder: str) -> Iterable[str]:
    return f"../{LATEST_ITERATION}", _unfinished_marker(folder)


def _find_missing(save: Inspection) -> str:
    """Count the files of verl's processes. Those of a former save with another number may stay."""
    # A directory of one of several nodes has only its own ranks.
    if not save.position.is_single_node:
        return ""
    worlds: dict[tuple[str, str], dict[int, set[int]]] = {}
    for path in save.files:
        if "_world_size_" in path and (match := _WORLD_FILE.fullmatch(path)):
            ranks = worlds.setdefault((match[1], match[4]), {}).setdefault(int(match[2]), set())
            ranks.add(int(match[3]))
    for (head, tail), by_size in worlds.items():
        if not any(len(ranks) >= size for size, ranks in by_size.items()):
            size, ranks = max(by_size.items())
            return f"{len(ranks)} of {size} files {head}_world_size_{size}_rank_*{tail} are there"
    return ""


def _find_unfinished_sign(save: Inspection) -> str:
    marker = _unfinished_marker(save.folder)
    if marker in save.trackers:
        return f"{marker.removeprefix('../')} is there, which is removed at the end of the save"
    if not save.position.is_leader or not _FOLDER.fullmatch(save.folder):
        return ""
    if not any(map(_SAVED_FILE.fullmatch, save.files)):
        return ""
    tracker = save.trackers.get(f"../{LATEST_ITERATION}")
    text = tracker.text if tracker else ""
    is_named = text.isdecimal() and int(text) >= (parse_step(save.folder) or 0)
    return "" if is_named else f"{LATEST_ITERATION} does not name {save.folder}"


def _is_finished(save: Inspection) -> bool:
    tracker = save.trackers.get(f"../{LATEST_ITERATION}")
    if tracker is None or not _FOLDER.fullmatch(save.folder):
        return False
    return tracker.text == str(parse_step(save.folder)) and save.is_newest(tracker.stat)


MEGATRON: Final = Format(
    title="Megatron-LM, NeMo, verl",
    folders="`iter_0000010`, `global_step_10`, `name--step=9-last`",
    end="`latest_checkpointed_iteration.txt`, which names the folder; of NeMo that "
    "`name--step=9-unfinished` is gone",
    state=re.compile(_STATE, re.DOTALL),
    pointers={LATEST_ITERATION: rewrite_number},
    trackers=_trackers,
    find_missing=_find_missing,
    find_unfinished_sign=_find_unfinished_sign,
    is_finished=_is_finished,
)
