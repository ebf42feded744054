"""Definition of the folders that are packed with a job (docs/compatibility.md, Workspace)."""

from __future__ import annotations

from pydantic import Field

from prefect_bt.definitions.base import StrictModel


class Workspace(StrictModel):
    """All paths are relative to the folder of the config file, or absolute."""

    workspace_root: str | None = None
    external_dirs: list[str] = Field(default_factory=list[str])
    exclude_dirs: list[str] = Field(default_factory=list[str])
