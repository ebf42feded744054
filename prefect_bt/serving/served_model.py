"""Data of serving: the models of one server, their files and their names in requests. Frozen."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_bt.definitions import ModelWeightsFormat
from prefect_bt.planning.plan import LoadedCheckpoint
from prefect_bt.text.hub_uri import parse_hub_uri


@dataclass(frozen=True)
class CheckpointContents:
    """Contents of the files of a checkpoint's lowest rank, which a server gets."""

    format: ModelWeightsFormat | None = None
    """None if the files do not show the format."""
    base_model: str = ""
    """As the trainer wrote it: an id of the Hub, or a folder of its machine."""
    base_revision: str = ""
    lora_rank: int | None = None
    """Highest rank of any layer; None if unknown, or not an adapter."""
    has_weights: bool = False
    sharding: str = ""
    """Library that sharded the weights, for example "FSDP"; empty for complete weights."""
    has_tokenizer: bool = False
    chat_template: str = ""
    """Digest of `chat_template.jinja`; empty if there is none."""
    unsupported_by_vllm: tuple[str, ...] = ()
    """Features of an adapter that vLLM rejects, for example "DoRA"."""
    other_ranks: tuple[int, ...] = ()
    """Ranks that have weights, if the lowest rank has none."""


@dataclass(frozen=True)
class SelectedCheckpoint:
    """A committed checkpoint and its name in requests.

    `manifests` are the keys of the manifests of all ranks, and the files of the first are served;
    `folder` is the path of the files in the node.
    """

    name: str
    project_id: str
    job_id: str
    checkpoint: str
    format: ModelWeightsFormat
    manifests: tuple[str, ...]
    folder: str
    contents: CheckpointContents
    configured_lora_rank: int | None = None
    """LoRA rank that the config sets."""
    missing_part: str = ""
    """Sentence with the ranks that did not commit their part."""

    @property
    def label(self) -> str:
        return f"checkpoint {self.checkpoint} of job {self.job_id}"

    @property
    def qualified_name(self) -> str:
        """Return the name by which options name the checkpoint."""
        return f"{self.job_id}/{self.checkpoint}"

    @property
    def source(self) -> str:
        """Return the weights URI, by IDs because names may contain `/` and `@`."""
        return f"bt://{self.project_id}@{self.job_id}/{self.checkpoint}"

    @property
    def required_checkpoint(self) -> LoadedCheckpoint:
        """Return the checkpoint for checkpoints.retention.holds."""
        return LoadedCheckpoint(self.project_id, self.job_id, self.checkpoint, self.manifests)


@dataclass(frozen=True)
class BaseModel:
    """A base model. `model` is as given, `source` the weights URI that it is mirrored from."""

    model: str
    source: str
    mount_location: str = ""
    """Path of its mount in the node."""
    subfolder: str = ""
    """Folder of the model in the mount; empty for the mount itself."""
    pinned_revision: str = ""
    """Required revision of the mirror; empty for any."""
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None
    auth: dict[str, str] | None = None
    """A WeightsAuth without empty fields: references, never values."""
    auth_secret_name: str = ""
    required_checkpoint: LoadedCheckpoint | None = None
    """The checkpoint, if the model is one of a job."""
    tokenizer_only: bool = False
    """Only the tokenizer is needed, by a full checkpoint that was saved without one."""

    @property
    def folder(self) -> str:
        """Return the path of the model in the node."""
        return f"{self.mount_location}/{self.subfolder}" if self.subfolder else self.mount_location

    @property
    def name(self) -> str:
        """Return the id of the Hub, or the last part of any other source."""
        if self.source.startswith("hf://"):
            return parse_hub_uri(self.source).repo_id
        return self.source.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class ModelSelection:
    """Models of one server: one full model, one Whisper model, or adapters of one base model."""

    models: tuple[SelectedCheckpoint, ...]
    base: BaseModel | None
    download_folder: str
    notes: tuple[str, ...] = ()
    """Sentences for the user who deploys."""

    @property
    def format(self) -> ModelWeightsFormat:
        """Return the format of all models."""
        return self.models[0].format

    @property
    def served_names(self) -> tuple[str, ...]:
        """Return the names of the models in requests."""
        return tuple(model.name for model in self.models)

    @property
    def base_name(self) -> str:
        """Return the name of the base model in requests, different from every adapter's."""
        name = self.base.name if self.base else ""
        while name in self.served_names:
            name += "-base"
        return name

    @property
    def suggested_name(self) -> str:
        """Return the last part of the base model's name for LoRA adapters, "" for other models."""
        is_lora = self.format is ModelWeightsFormat.LORA
        return self.base.name.rpartition("/")[2] if is_lora and self.base else ""

    @property
    def required_checkpoints(self) -> tuple[LoadedCheckpoint, ...]:
        """Return the checkpoints to hold while they are served, with that of the base model."""
        base = self.base.required_checkpoint if self.base else None
        return (*(model.required_checkpoint for model in self.models), *((base,) if base else ()))
