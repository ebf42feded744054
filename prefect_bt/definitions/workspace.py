"""Definition of the folders that are packed with a job (docs/compatibility.md, Workspace)."""

from __future__ import annotations

from pydantic import Field

from prefect_bt.definitions.base import StrictModel


class Workspace(StrictModel):
    """Folders to pack as the workspace. Relative paths start at the folder of the config file."""

    workspace_root: str | None = None
    """Folder to pack; it contains the config's folder. None: the config's folder."""
    external_dirs: list[str] = Field(default_factory=list[str])
    """Folders outside the root to pack beside its contents, each under its own name."""
    exclude_dirs: list[str] = Field(default_factory=list[str])
    """Direct children of the root, folders or files, to leave out."""
