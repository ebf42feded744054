"""Definitions for serving the checkpoints of a job."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, cast

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator

from prefect_bt.definitions.base import OpenModel, StrictModel
from prefect_bt.definitions.compute import Compute
from prefect_bt.definitions.variables import EnvironmentVariables

DEFAULT_LORA_RANK: Final = 16
DEFAULT_DOWNLOAD_FOLDER: Final = "/tmp/training_checkpoints"  # noqa: S108


class ModelWeightsFormat(StrEnum):
    """What a checkpoint holds."""

    LORA = "lora"
    FULL = "full"
    WHISPER = "whisper"


class TrainingArtifactReference(OpenModel):
    """Files of a job: `paths` may hold `*` and `?`; a trailing slash marks a folder."""

    training_job_id: str
    paths: list[str] = Field(default_factory=list[str])


class LoRADetails(OpenModel):
    """LoRA details. `rank` is any integer; serving rounds it up to a rank that vLLM accepts."""

    rank: int = DEFAULT_LORA_RANK


class Checkpoint(OpenModel):
    """One checkpoint of one job; write one of the three subclasses."""

    training_job_id: str
    checkpoint_name: str
    model_weight_format: ModelWeightsFormat

    def to_truss_config(self) -> TrainingArtifactReference:
        """The checkpoint's folder as left by the leader."""
        return TrainingArtifactReference(
            training_job_id=self.training_job_id, paths=[f"rank-0/{self.checkpoint_name}/"]
        )


class FullCheckpoint(Checkpoint):
    """All weights of a model."""

    model_weight_format: ModelWeightsFormat = ModelWeightsFormat.FULL


class LoRACheckpoint(Checkpoint):
    """An adapter, served on top of its base model."""

    lora_details: LoRADetails = Field(default_factory=LoRADetails)
    model_weight_format: ModelWeightsFormat = ModelWeightsFormat.LORA


class WhisperCheckpoint(Checkpoint):
    """A Whisper speech model."""

    model_weight_format: ModelWeightsFormat = ModelWeightsFormat.WHISPER


_BY_FORMAT: Final[dict[str, type[Checkpoint]]] = {
    "full": FullCheckpoint,
    "lora": LoRACheckpoint,
    "whisper": WhisperCheckpoint,
}


def _to_format_class(value: Any) -> Any:
    """truss reads a dict as the base class; we want what code would have written."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    stated = fields.get("model_weight_format")
    kind = _BY_FORMAT.get(stated) if isinstance(stated, str) else None
    return kind.model_validate(fields) if kind else fields


AnyCheckpoint = Annotated[SerializeAsAny[Checkpoint], BeforeValidator(_to_format_class)]
"""Dumped with the fields of the subclass, so that a LoRA keeps its rank (truss loses it)."""


class CheckpointList(StrictModel):
    """What to deploy: checkpoints of jobs or of Loops runs, not both."""

    download_folder: str = DEFAULT_DOWNLOAD_FOLDER
    base_model_id: str | None = None
    checkpoints: list[AnyCheckpoint] = Field(default_factory=list[AnyCheckpoint])
    loops_checkpoint_ids: list[str] = Field(default_factory=list[str])

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.checkpoints and self.loops_checkpoint_ids:
            raise ValueError(
                "checkpoints and loops_checkpoint_ids cannot be deployed together; keep one"
            )
        return self

    def to_truss_config(self) -> ArtifactList:
        return ArtifactList(
            download_folder=self.download_folder,
            artifact_references=[one.to_truss_config() for one in self.checkpoints],
            loops_checkpoint_ids=self.loops_checkpoint_ids,
        )


class ArtifactList(OpenModel):
    """What `truss.base.truss_config` calls `CheckpointList`: the same as paths of jobs."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="CheckpointList")

    download_folder: str = DEFAULT_DOWNLOAD_FOLDER
    artifact_references: list[TrainingArtifactReference] = Field(
        default_factory=list[TrainingArtifactReference]
    )
    loops_checkpoint_ids: list[str] = Field(default_factory=list[str])

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.artifact_references and self.loops_checkpoint_ids:
            raise ValueError(
                "artifact_references and loops_checkpoint_ids cannot be deployed together; keep one"
            )
        return self


class DeployCheckpointsRuntime(StrictModel):
    """The server's environment."""

    environment_variables: EnvironmentVariables = Field(default_factory=EnvironmentVariables)


class DeployCheckpointsConfig(StrictModel):
    """A deployment of checkpoints. Missing values are asked for or chosen at deployment."""

    checkpoint_details: CheckpointList | None = None
    model_name: str | None = None
    runtime: DeployCheckpointsRuntime | None = None
    compute: Compute | None = None
