"""What was chosen, without a store."""

from __future__ import annotations

from typing import Any

from prefect_bt.definitions import Accelerator, AcceleratorSpec, Compute, ModelWeightsFormat
from prefect_bt.serving.served_model import (
    BaseModel,
    CheckpointContents,
    ModelSelection,
    SelectedCheckpoint,
)

FULL, LORA, WHISPER = (ModelWeightsFormat.FULL, ModelWeightsFormat.LORA, ModelWeightsFormat.WHISPER)
DOWNLOADED = "/tmp/training_checkpoints"
HUB_BASE = BaseModel("org/base-7b", "hf://org/base-7b", mount_location=f"{DOWNLOADED}/base")


def chosen(
    name: str = "checkpoint-10",
    format_: ModelWeightsFormat = FULL,
    *,
    job: str = "gvpql31",
    stated_rank: int | None = None,
    **contents: Any,
) -> SelectedCheckpoint:
    held = {"has_weights": True, "has_tokenizer": True, **contents}
    return SelectedCheckpoint(
        name=name,
        project_id="aghi527",
        job_id=job,
        checkpoint=name,
        format=format_,
        manifests=(f"manifests/{name}",),
        folder=f"{DOWNLOADED}/{job}/rank-0/{name}",
        contents=CheckpointContents(format=format_, **held),
        configured_lora_rank=stated_rank,
    )


def lora(name: str = "checkpoint-10", rank: int | None = 16, **more: Any) -> SelectedCheckpoint:
    return chosen(name, LORA, lora_rank=rank, **more)


def choice(*models: SelectedCheckpoint, base: BaseModel | None = None) -> ModelSelection:
    if base is None and models[0].format is LORA:
        base = HUB_BASE
    return ModelSelection(models, base, DOWNLOADED)


def gpus(kind: str = "H100", count: int = 1) -> Compute:
    return Compute(accelerator=AcceleratorSpec(accelerator=Accelerator(kind), count=count))
