"""Definitions for serving the checkpoints of a job."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, cast

from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator

from prefect_bt.definitions.base import Integer, OpenModel, StrictModel
from prefect_bt.definitions.compute import Compute
from prefect_bt.definitions.environment_variables import EnvironmentVariables

DEFAULT_LORA_RANK: Final = 16
DEFAULT_DOWNLOAD_FOLDER: Final = "/tmp/training_checkpoints"  # noqa: S108


class ModelWeightsFormat(StrEnum):
    """Kind of the weights in a checkpoint."""

    LORA = "lora"
    FULL = "full"
    WHISPER = "whisper"


class TrainingArtifactReference(OpenModel):
    """Files of a job, in the truss config that `deploy_checkpoints --dry-run` writes."""

    training_job_id: str
    """Id of the job that wrote the files."""
    paths: list[str] = Field(default_factory=list[str])
    """Paths with `*` and `?`; a slash at the end marks a folder: `rank-0/checkpoint-10/`."""


class LoRADetails(OpenModel):
    """Properties of a LoRA adapter."""

    rank: Integer = DEFAULT_LORA_RANK
    """Rank if the adapter has no `r`; serving rounds it up to a rank that vLLM accepts."""


class Checkpoint(OpenModel):
    """One checkpoint of one job: the base class of the three classes below."""

    training_job_id: str
    """Id of the job that wrote the checkpoint."""
    checkpoint_name: str
    """Folder relative to the checkpoint directory, such as `checkpoint-10`."""
    model_weight_format: ModelWeightsFormat
    """Kind of the weights."""

    def to_truss_config(self) -> TrainingArtifactReference:
        """Return the folder of the checkpoint as rank 0 wrote it."""
        return TrainingArtifactReference(
            training_job_id=self.training_job_id, paths=[f"rank-0/{self.checkpoint_name}/"]
        )


class FullCheckpoint(Checkpoint):
    """A checkpoint with all the weights of a model, served without a base model."""

    model_weight_format: ModelWeightsFormat = ModelWeightsFormat.FULL


class LoRACheckpoint(Checkpoint):
    """A LoRA adapter, served on top of its base model."""

    lora_details: LoRADetails = Field(default_factory=LoRADetails)
    """Rank of the adapter."""
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
    """Return a dict as the class of its format; truss reads it as the base class."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    stated = fields.get("model_weight_format")
    kind = _BY_FORMAT.get(stated) if isinstance(stated, str) else None
    return kind.model_validate(fields) if kind else fields


AnyCheckpoint = Annotated[SerializeAsAny[Checkpoint], BeforeValidator(_to_format_class)]
"""Dumped with the fields of the subclass, so that a LoRA keeps its rank (truss loses it)."""


class CheckpointList(StrictModel):
    """Checkpoints to deploy: of jobs or of Loops runs, not both."""

    download_folder: str = DEFAULT_DOWNLOAD_FOLDER
    """Parent of the folders `<job id>/rank-0/<checkpoint>` on the server."""
    base_model_id: str | None = None
    """Base model of the adapters; None: the one that each adapter names."""
    checkpoints: list[AnyCheckpoint] = Field(default_factory=list[AnyCheckpoint])
    """Checkpoints to serve together: one full or Whisper model, or adapters of one base."""
    loops_checkpoint_ids: list[str] = Field(default_factory=list[str])
    """Ids of checkpoints of Baseten Loops. They are refused here."""

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
    """`CheckpointList` of `truss.base.truss_config`: checkpoints as paths of jobs."""

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
    """Environment of the inference server."""

    environment_variables: EnvironmentVariables = Field(default_factory=EnvironmentVariables)
    """Variables of the server: texts or secrets, such as `HF_TOKEN`."""


class DeployCheckpointsConfig(StrictModel):
    """A deployment of checkpoints. In a terminal, `deploy_checkpoints` asks for missing values."""

    checkpoint_details: CheckpointList | None = None
    """Checkpoints to serve; None: chosen by the options of the command."""
    model_name: str | None = None
    """Name of the deployment; None: the command asks, or `--model-name` names it."""
    runtime: DeployCheckpointsRuntime | None = None
    """Environment of the server; None: no variables."""
    compute: Compute | None = None
    """Resources of the server, one node; None: `--accelerator`, or the command asks."""
