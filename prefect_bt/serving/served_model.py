"""Words of serving: what is served, from which files, under which names. Frozen, for the codec.

`served.json`, which the embedded program reads, is a `ServingConfig`:

    {"models": [{"name": "checkpoint-10", "path": "/…/checkpoint-10", "kind": "lora"}],
     "base": "/…"}                                        null where no base model is needed
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_bt.definitions import ModelWeightsFormat
from prefect_bt.planning.plan import LoadedCheckpoint


@dataclass(frozen=True)
class CheckpointContents:
    """What is in the files of a checkpoint that a server would be given: the lowest rank's part.

    `size` in bytes.
    """

    format: ModelWeightsFormat | None = None
    """None if the files do not show the format."""
    base_model: str = ""
    """As its writer spelled it: an id of the Hub, or a folder of the machine it was written on."""
    base_revision: str = ""
    lora_rank: int | None = None
    """The highest of any layer; None where the adapter does not tell, or there is none."""
    has_weights: bool = False
    sharding: str = ""
    """What spread the weights over processes, for example "FSDP"; empty where they are whole."""
    has_tokenizer: bool = False
    chat_template: str = ""
    """Digest of `chat_template.jinja`; empty where there is none."""
    unsupported_by_vllm: tuple[str, ...] = ()
    """What vLLM refuses of an adapter, for example "DoRA"."""
    size: int = 0
    other_ranks: tuple[int, ...] = ()
    """Ranks whose part has weights, where this one has none."""


@dataclass(frozen=True)
class SelectedCheckpoint:
    """A committed checkpoint, and the name it answers under.

    `manifest` is the key of the manifest whose files are served, `manifests` those of all ranks;
    `folder` is where they lie inside the node.
    """

    name: str
    project_id: str
    job_id: str
    checkpoint: str
    format: ModelWeightsFormat
    manifest: str
    manifests: tuple[str, ...]
    folder: str
    contents: CheckpointContents
    configured_lora_rank: int | None = None
    """What the config says of a LoRA, where it says it itself."""

    @property
    def source(self) -> str:
        """By ids, because names are free text and may hold `/` and `@`."""
        return f"bt://{self.project_id}@{self.job_id}/{self.checkpoint}"

    @property
    def required_checkpoint(self) -> LoadedCheckpoint:
        """For checkpoints.retention.holds: what must stay while it is served."""
        return LoadedCheckpoint(self.project_id, self.job_id, self.checkpoint, self.manifests)


@dataclass(frozen=True)
class BaseModel:
    """`model` as it was told, `source` the weights URI that it is mirrored from."""

    model: str
    source: str
    mount_location: str = ""
    """Where it is mounted inside the node."""
    subfolder: str = ""
    """The folder of the mount that is the model; empty for the mount itself."""
    pinned_revision: str = ""
    """Revision of the mirror that it must be; empty where any will do."""
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None
    auth: dict[str, str] | None = None
    """A WeightsAuth without its empty fields: references, never values."""
    auth_secret_name: str = ""
    required_checkpoint: LoadedCheckpoint | None = None
    """Set where it is a checkpoint of a job itself."""
    tokenizer_only: bool = False
    """Its weights are not needed: a full checkpoint that was saved without its tokenizer."""

    @property
    def folder(self) -> str:
        """Where the model lies inside the node."""
        return f"{self.mount_location}/{self.subfolder}" if self.subfolder else self.mount_location

    @property
    def name(self) -> str:
        """An id of the Hub as it is, the last part of any other place."""
        if self.source.startswith("hf://"):
            return self.source.removeprefix("hf://").partition("@")[0]
        return self.source.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class ModelSelection:
    """What one server serves: one full model, one Whisper, or adapters of one base."""

    models: tuple[SelectedCheckpoint, ...]
    base: BaseModel | None
    download_folder: str
    notes: tuple[str, ...] = ()
    """Sentences for whoever deploys it."""

    @property
    def format(self) -> ModelWeightsFormat:
        """The same for all of them."""
        return self.models[0].format

    @property
    def served_names(self) -> tuple[str, ...]:
        """What a request's `model` may say."""
        return tuple(model.name for model in self.models)

    @property
    def base_name(self) -> str:
        """What the base model answers under beside them: no adapter's name."""
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
        """What must stay while they are served, the base model included if a job made it."""
        base = self.base.required_checkpoint if self.base else None
        return (*(model.required_checkpoint for model in self.models), *((base,) if base else ()))


@dataclass(frozen=True)
class ServedModel:
    """`kind` is FULL or LORA: a Whisper model is whole, too, and its files tell what it is."""

    name: str
    path: str
    kind: ModelWeightsFormat


@dataclass(frozen=True)
class ServedModels:
    models: tuple[ServedModel, ...]
    base: str | None = None
