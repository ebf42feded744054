"""Definitions for saving checkpoints and for references to earlier checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

from pydantic import Discriminator, Field, Tag

from prefect_bt.definitions.base import Integer, StrictModel
from prefect_bt.errors import DefinitionError
from prefect_bt.node_paths import LOADED_CHECKPOINTS_DIR


class CheckpointingConfig(StrictModel):
    """Upload of checkpoints to the store while the job runs."""

    enabled: bool = False
    """Whether the nodes have a checkpoint directory that is uploaded."""
    checkpoint_path: str | None = None
    """Absolute path of the directory; None: `/mnt/ckpts`. `BT_CHECKPOINT_DIR` holds it."""
    volume_size_gib: Integer | None = None
    """GiB that must be free on the disk; not a limit. None: not checked."""


class BasetenLatestCheckpoint(StrictModel):
    """The newest checkpoint of a job or project; with neither, of the job's own project."""

    job_id: str | None = None
    """Id of the job; None: the newest job of the project that has a checkpoint."""
    project_name: str | None = None
    """Name of the project; None: the job's own project."""
    typ: Literal["baseten_latest_checkpoint"] = "baseten_latest_checkpoint"
    """Kind of the reference in JSON."""


class BasetenNamedCheckpoint(StrictModel):
    """One checkpoint of one job, by its name."""

    checkpoint_name: str
    """Folder relative to the checkpoint directory, such as `checkpoint-10`."""
    job_id: str
    """Id of the job that wrote the checkpoint."""
    typ: Literal["baseten_named_checkpoint"] = "baseten_named_checkpoint"
    """Kind of the reference in JSON."""


class LoopsCheckpointReference(StrictModel):
    """A checkpoint of a run of Baseten Loops. It is refused here."""

    run_id: str
    """Id of the Loops run."""
    checkpoint_name: str
    """Name of the checkpoint."""
    target: Literal["trainer", "sampler"] = "trainer"
    """`trainer`: the full training state; `sampler`: weights for inference."""
    typ: Literal["loops_checkpoint"] = "loops_checkpoint"
    """Kind of the reference in JSON."""


class CheckpointReferenceError(DefinitionError, TypeError, ValueError):
    """A reference without a project and without a job.

    It is a ValueError, and a TypeError because truss raises one here by accident.
    """


class BasetenCheckpoint:
    """Functions that make references to checkpoints of earlier jobs."""

    @staticmethod
    def from_latest_checkpoint(
        project_name: str | None = None, job_id: str | None = None
    ) -> BasetenLatestCheckpoint:
        """Return a reference; raise CheckpointReferenceError if neither argument is given."""
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
    """Function that makes a reference to a checkpoint of a Loops run."""

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
"""Distinguished by `typ`; a dict without `typ` is distinguished by its fields, as in truss."""


class LoadCheckpointConfig(StrictModel):
    """Earlier checkpoints that are downloaded before the commands run."""

    enabled: bool = False
    """Whether the checkpoints are downloaded."""
    checkpoints: list[CheckpointReference] = Field(
        default_factory=lambda: [BasetenLatestCheckpoint()]
    )
    """References to checkpoints; by default the newest of the job's own project."""
    download_folder: str = LOADED_CHECKPOINTS_DIR
    """Parent of the folders `rank-<n>/<name>`. `BT_LOAD_CHECKPOINT_DIR` holds it."""
