"""Formats whose files need no rules of their own beyond those of each file (content.py).

epoch=3-step=30.ckpt, weights.03-0.25.keras, model_10.pt    a file is the checkpoint
checkpoint_000003/...                                       Ray Train: any framework's files
run/100/default/..., _CHECKPOINT_METADATA                   Orbax renames the folder at its end
"""

from __future__ import annotations

import re
from typing import Final

from prefect_bt.checkpoints.formats.pointers import rewrite_name, rewrite_tensorflow
from prefect_bt.checkpoints.formats.protocol import Format, Inspection

_LAST_FILES: Final = ("LATEST", "latest_checkpoint", "latest_checkpoint.txt", "last_checkpoint")
"""Pointer files of MMEngine, detectron2 and loops of their users."""
RAY_SNAPSHOT: Final = "checkpoint_manager_snapshot.json"


def _is_in_snapshot(save: Inspection) -> bool:
    snapshot = save.trackers.get(f"../{RAY_SNAPSHOT}")
    if snapshot is None or not save.is_newest(snapshot.stat):
        return False
    return f'"{save.folder}"' in snapshot.text


FILES: Final = Format(
    title="Lightning, Keras, `torch.save`",
    folders="a file: `epoch=3-step=30.ckpt`, `last.ckpt`, `weights.03-0.25.keras`, `model_10.pt`; "
    "`best.pt` beside such a file",
    end="the zip or HDF5 file is whole, after a pause",
    pointers={
        "checkpoint": rewrite_tensorflow,
        **dict.fromkeys(_LAST_FILES, rewrite_name),
    },
)
RAY_TRAIN: Final = Format(
    title="Ray Train",
    folders="`checkpoint_000003`",
    end=f"`{RAY_SNAPSHOT}` beside the folder, which names it; else the files in it",
    trackers=lambda folder: (f"../{RAY_SNAPSHOT}",),
    is_finished=_is_in_snapshot,
)
ORBAX: Final = Format(
    title="Orbax, Flax",
    folders="a folder with `_CHECKPOINT_METADATA`: `run/100`",
    end="its temporary name is gone",
    state=re.compile(r"_CHECKPOINT_METADATA|.*/_METADATA"),
)
