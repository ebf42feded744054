"""Definitions of a project and of the job to run in it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from prefect_bt.definitions.base import StrictModel
from prefect_bt.definitions.compute import Compute
from prefect_bt.definitions.image import Image
from prefect_bt.definitions.runtime import Runtime
from prefect_bt.definitions.session import InteractiveSession
from prefect_bt.definitions.weights import WeightsSource
from prefect_bt.definitions.workspace import Workspace


class TrainingJob(StrictModel):
    """One execution. Without `name` it is called `job-<n>`; `priority=None` counts as 0.

    All four authentication methods of weights are accepted. With `enable_baseten_workdir` the
    commands start in `/b10/workspace`, else in the working directory of the image.
    """

    image: Image
    compute: Compute = Field(default_factory=Compute)
    runtime: Runtime = Field(default_factory=Runtime)
    interactive_session: InteractiveSession | None = None
    name: str | None = None
    priority: int | None = None
    workspace: Workspace | None = None
    weights: list[WeightsSource] = Field(default_factory=list[WeightsSource])
    enable_baseten_workdir: bool = True

    def model_dump(self, **kwargs: Any) -> dict[str, Any]:
        """Dump as pydantic does, but `compute` by its own `model_dump`."""
        data = super().model_dump(**kwargs)
        if "compute" in data:
            data["compute"] = self.compute.model_dump()
        return data


class TrainingProject(StrictModel):
    """`name` is free text: blanks and slashes occur, so it is never a path component as it is.

    `job` is left out of `model_dump`, as in truss; `json_documents.project_document` has both.
    """

    name: str
    job: TrainingJob = Field(exclude=True)
    team_name: str | None = None
