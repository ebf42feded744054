"""Definitions of a project, of the job to run in it, and of the folders to pack with a job."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from prefect_bt.definitions.base import Integer, StrictModel
from prefect_bt.definitions.compute import Compute
from prefect_bt.definitions.image import Image
from prefect_bt.definitions.interactive_session import InteractiveSession
from prefect_bt.definitions.runtime import Runtime
from prefect_bt.definitions.weights import WeightsSource


class Workspace(StrictModel):
    """Folders to pack as the workspace. Relative paths start at the folder of the config file."""

    workspace_root: str | None = None
    """Folder to pack; it contains the config's folder. None: the config's folder."""
    external_dirs: list[str] = Field(default_factory=list[str])
    """Folders outside the root to pack beside its contents, each under its own name."""
    exclude_dirs: list[str] = Field(default_factory=list[str])
    """Direct children of the root, folders or files, to leave out."""


class TrainingJob(StrictModel):
    """One execution of the start commands on a number of nodes."""

    image: Image
    """Container image of every node."""
    compute: Compute = Field(default_factory=Compute)
    """Number of nodes, and the resources of each node."""
    runtime: Runtime = Field(default_factory=Runtime)
    """Start commands, environment variables, checkpoints and cache."""
    interactive_session: InteractiveSession | None = None
    """Remote session on a node. No session opens yet."""
    name: str | None = None
    """Name of the job; None: `job-<n>`, counted within the project."""
    priority: Integer | None = None
    """Priority in the queue: a higher one starts first; None: 0."""
    workspace: Workspace | None = None
    """Folders to pack; None: the folder of the config file."""
    weights: list[WeightsSource] = Field(default_factory=list[WeightsSource])
    """Weights to mirror and to mount before the commands run."""
    enable_baseten_workdir: bool = True
    """Whether commands start in `/b10/workspace`; False: the image's WORKDIR (not local)."""

    def model_dump(self, **kwargs: Any) -> dict[str, Any]:
        """Dump as pydantic does, but `compute` by its own `model_dump`."""
        data = super().model_dump(**kwargs)
        if "compute" in data:
            data["compute"] = self.compute.model_dump()
        return data


class TrainingProject(StrictModel):
    """A named collection of jobs, with the job to run.

    `model_dump` leaves out `job`, as in truss; `json_documents.project_document` has both.
    """

    name: str
    """Name of the project: any text on one line. The first push creates the project."""
    job: TrainingJob = Field(exclude=True)
    """Job to submit."""
    team_name: str | None = None
    """Team that owns the project; None: the only team with such a project, or the default."""
