"""Checkpoints of Accelerate's `save_state`, which many of diffusers' scripts use.

checkpoint_10/model.safetensors, pytorch_model_fsdp_0/, pytorch_model/    the models
checkpoint_10/optimizer.bin, scheduler.bin, sampler.bin                   of a single process
checkpoint_10/random_states_<rank>.pkl     one a process; then only objects that a loop registers
"""

from __future__ import annotations

import re
from typing import Final

from prefect_bt.checkpoints.formats.deepspeed import ACCELERATE_FOLDER
from prefect_bt.checkpoints.formats.protocol import Format, Inspection
from prefect_bt.checkpoints.formats.trainer import TRAINER_STATE
from prefect_bt.checkpoints.layout import ROOT

_STATE_FILE: Final = re.compile(r"(?:optimizer|scheduler|sampler)(?:_\d+)?\.bin")
_RANDOM_STATES: Final = re.compile(r"random_states_\d+\.pkl")


def _find_unfinished_sign(save: Inspection) -> str:
    """Return that the random states are missing.

    False positive: save_fsdp_model by hand, or the user's own optimizer.bin.
    """
    has_last = TRAINER_STATE in save.files or any(map(_RANDOM_STATES.fullmatch, save.files))
    if has_last or save.checkpoint.name == ROOT or not save.position.is_leader:
        return ""
    for path in save.files:
        if _STATE_FILE.fullmatch(path) or ACCELERATE_FOLDER.fullmatch(path):
            return f"{path} is there, but no random states"
    return ""


ACCELERATE: Final = Format(
    title="Accelerate, diffusers' training scripts",
    folders="`checkpoint_10`, `checkpoint-10`, `epoch_3`",
    end="the random states (`random_states_0.pkl`), after a pause",
    state=re.compile(
        r"(?:optimizer|scheduler|scaler|sampler)(?:_\d+)?\.(?:pt|bin)"
        r"|random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl"
    ),
    find_unfinished_sign=_find_unfinished_sign,
)
