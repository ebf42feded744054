"""Definitions for saving checkpoints and for references to earlier checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

from pydantic import Discriminator, Field, Tag

from prefect_bt.definitions.base import StrictModel
from prefect_bt.errors import DefinitionError
from prefect_bt.node_paths import LOADED_CHECKPOINTS_DIR


class CheckpointingConfig(StrictModel):
    """`checkpoint_path` overrides the directory that `BT_CHECKPOINT_DIR` names."""

    enabled: bool = False
    checkpoint_path: str | None = None
    volume_size_gib: int | None = None


class BasetenLatestCheckpoint(StrictModel):
    """The newest checkpoint of a job or project; with neither, of the current project."""

    job_id: str | None = None
    project_name: str | None = None
    typ: Literal["baseten_latest_checkpoint"] = "baseten_latest_checkpoint"


class BasetenNamedCheckpoint(StrictModel):
    """One checkpoint of one job, by name."""

    checkpoint_name: str
    job_id: str
    typ: Literal["baseten_named_checkpoint"] = "baseten_named_checkpoint"


class LoopsCheckpointReference(StrictModel):
    """A checkpoint of a Loops run: full training state, or weights for inference."""

    run_id: str
    checkpoint_name: str
    target: Literal["trainer", "sampler"] = "trainer"
    typ: Literal["loops_checkpoint"] = "loops_checkpoint"


class CheckpointReferenceError(DefinitionError, TypeError, ValueError):
    """A reference that names nothing.

    truss raises TypeError here by an accident of its own; a ValueError is what it is. This is both.
    """


class BasetenCheckpoint:
    """Where to write a reference to a checkpoint of an earlier job."""

    @staticmethod
    def from_latest_checkpoint(
        project_name: str | None = None, job_id: str | None = None
    ) -> BasetenLatestCheckpoint:
        """Raises CheckpointReferenceError when neither is given."""
        if not job_id and not project_name:
            raise CheckpointReferenceError(
                "BasetenCheckpoint.from_latest_checkpoint() was called without project_name "
                "and without job_id.",
                next_step="Give one of them; for the newest checkpoint of the same project write "
                "LoadCheckpointConfig(enabled=True) without `checkpoints`.",
                field="checkpoints",
            )
        return BasetenLatestCheckpoint(project_name=project_name, job_id=job_id)

    @staticmethod
    def from_named_checkpoint(checkpoint_name: str, job_id: str) -> BasetenNamedCheckpoint:
        return BasetenNamedCheckpoint(checkpoint_name=checkpoint_name, job_id=job_id)


class LoopsCheckpoint:
    """Where to write a reference to a checkpoint of a Loops run."""

    @staticmethod
    def from_checkpoint(
        run_id: str, checkpoint_name: str, target: Literal["trainer", "sampler"] = "trainer"
    ) -> LoopsCheckpointReference:
        return LoopsCheckpointReference(
            run_id=run_id, checkpoint_name=checkpoint_name, target=target
        )


_LATEST: Final = "baseten_latest_checkpoint"
_NAMED: Final = "baseten_named_checkpoint"
_LOOPS: Final = "loops_checkpoint"


def _reference_tag(value: Any) -> str | None:
    if not isinstance(value, dict):
        kind = getattr(value, "typ", None)
        return kind if isinstance(kind, str) else None
    fields = cast("dict[str, object]", value)
    typ = fields.get("typ")
    if typ is not None:
        return typ if isinstance(typ, str) and typ in {_LATEST, _NAMED, _LOOPS} else None
    if "run_id" in fields:
        return _LOOPS
    return _NAMED if "checkpoint_name" in fields else _LATEST


CheckpointReference = Annotated[
    Annotated[BasetenLatestCheckpoint, Tag(_LATEST)]
    | Annotated[BasetenNamedCheckpoint, Tag(_NAMED)]
    | Annotated[LoopsCheckpointReference, Tag(_LOOPS)],
    Discriminator(
        _reference_tag,
        custom_error_type="checkpoint_reference",
        custom_error_message="write BasetenCheckpoint.from_latest_checkpoint(...), "
        "BasetenCheckpoint.from_named_checkpoint(...) or LoopsCheckpoint.from_checkpoint(...); "
        f"in JSON, `typ` is {_LATEST}, {_NAMED} or {_LOOPS}",
    ),
]
"""Told apart by `typ`; a dict without one is recognised by its fields, as truss does."""


class LoadCheckpointConfig(StrictModel):
    """What lies under `download_folder` before the commands run."""

    enabled: bool = False
    checkpoints: list[CheckpointReference] = Field(
        default_factory=lambda: [BasetenLatestCheckpoint()]
    )
    download_folder: str = LOADED_CHECKPOINTS_DIR
