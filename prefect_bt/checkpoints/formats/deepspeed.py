"""DeepSpeed's checkpoints.

    global_step10/mp_rank_<m>_model_states.pt                   ZeRO 1, 2: the model, by rank 0
    global_step10/*zero_pp_rank_<d>_mp_rank_<m>_optim_states.pt one a process
    global_step10/zero_pp_rank_<d>_mp_rank_<m>_model_states.pt  ZeRO 3: both by each process
    latest                                                      beside the folder, after a barrier

Trainer and Accelerate have the folder inside their own checkpoint, with `latest` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from prefect_bt.checkpoints.formats.pointers import rewrite_name
from prefect_bt.checkpoints.formats.protocol import Format, Inspection
from prefect_bt.checkpoints.layout import parse_step

LATEST: Final = "latest"
_TAG: Final = re.compile(r"global_step\d+")
_RANK_FILE: Final = re.compile(
    r"(.*/|)(?:\w+_)?zero_pp_rank_(\d+)_(mp_rank_\d+)\w*?_(optim|model)_states\.pt", re.DOTALL
)
_STATES_SUFFIX: Final = "_states.pt"
ACCELERATE_FOLDER: Final = re.compile(r"pytorch_model(?:_fsdp)?(?:_\d+)?/.*", re.DOTALL)
"""Files of the models in a checkpoint of Accelerate, which writes its own states after them."""


def is_tag_folder(component: str) -> bool:
    """Return whether a folder of this name may hold the shards of the checkpoint around it."""
    return _TAG.fullmatch(component) is not None


def count_optimizer_shards(paths: Collection[str]) -> int:
    """Return how many processes wrote ZeRO's optimizer states."""
    return sum(path.endswith("_optim_states.pt") for path in paths)


def _find_missing(save: Inspection) -> str:
    shards: dict[str, dict[str, dict[str, set[int]]]] = {}
    for path in save.files:
        if "zero_pp_rank_" in path and (match := _RANK_FILE.fullmatch(path)):
            kinds = shards.setdefault(match[1], {}).setdefault(match[4], {})
            kinds.setdefault(match[3], set()).add(int(match[2]))
    for folder, kinds in shards.items():
        fault = _find_missing_pair(folder, kinds, save) or (
            _find_missing_rank(folder, kinds) if save.position.is_single_node else ""
        )
        if fault:
            return fault
    return ""


def _find_missing_pair(
    folder: str, kinds: Mapping[str, Mapping[str, set[int]]], save: Inspection
) -> str:
    """Check for both states: the model's come first; in stage 3 each process writes both."""
    optim, model = kinds.get("optim", {}), kinds.get("model", {})
    # Without an optimizer, an engine saves nothing in stage 3.
    for part, ranks in model.items():
        if missing := ranks - optim.get(part, set()):
            return f"{folder} has no optimizer states of data rank {min(missing)} ({part})"
    # The other nodes' processes of stage 1 and 2 write optimizer states only.
    has_first = any(0 in ranks for ranks in optim.values())
    has_model = any(p.startswith(folder) and p.endswith("model_states.pt") for p in save.files)
    if has_first and save.position.is_leader and not has_model:
        return f"{folder} has optimizer states, but no model states"
    return ""


def _find_missing_rank(folder: str, kinds: Mapping[str, Mapping[str, set[int]]]) -> str:
    """Check that every part of the model has the same data ranks, from 0."""
    for kind, parts in kinds.items():
        expected = set(range(1 + max(max(ranks) for ranks in parts.values())))
        for part, ranks in parts.items():
            if missing := expected - ranks:
                return f"{folder} has no {kind} states of data rank {min(missing)} ({part})"
    return ""


def _find_unfinished_sign(save: Inspection) -> str:
    """Return a sign from `latest`. False positive: DeepSpeed without `save_latest`."""
    states = [path for path in save.files if path.endswith(_STATES_SUFFIX)]
    if not save.position.is_leader or not states:
        return ""
    if all("/" in path for path in states):
        tags = {path.partition("/")[0] for path in states}
        own = save.trackers.get(LATEST)
        return "" if own and own.text in tags else f"{LATEST} does not name {min(tags)}"
    above = save.trackers.get(f"../{LATEST}")
    named = parse_step(above.text) if above else None
    is_named = named is not None and named >= (parse_step(save.folder) or 0)
    return (
        ""
        if is_named or not is_tag_folder(save.folder)
        else f"{LATEST} does not name {save.folder}"
    )


def _is_finished(save: Inspection) -> bool:
    files, own = save.saved_files, save.trackers.get(LATEST)
    if own is not None:
        inside = {path for path in files if path.startswith(f"{own.text}/")}
        # Trainer and accelerate write more files after this one.
        is_all = files.keys() - inside <= {LATEST, "zero_to_fp32.py"}
        has_more = any(map(ACCELERATE_FOLDER.fullmatch, inside))
        return bool(inside) and is_all and not has_more and save.is_newest(own.stat)
    above = save.trackers.get(f"../{LATEST}")
    return above is not None and above.text == save.folder and save.is_newest(above.stat)


DEEPSPEED: Final = Format(
    title="DeepSpeed",
    folders="`global_step10`, or such a folder in a checkpoint",
    end="`latest`, which names the folder, and the states of all data ranks",
    state=re.compile(r".*_states\.pt|latest"),
    pointers=dict.fromkeys((LATEST, "latest_universal"), rewrite_name),
    trackers=lambda folder: (LATEST, f"../{LATEST}"),
    find_missing=_find_missing,
    find_unfinished_sign=_find_unfinished_sign,
    is_finished=_is_finished,
)
