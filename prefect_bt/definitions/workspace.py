"""Which folders travel with a job (§2.8, rules in §3.2)."""

from __future__ import annotations

from pydantic import Field

from prefect_bt.definitions.base import StrictModel


class Workspace(StrictModel):
    """All paths are relative to the folder of the config file, or absolute."""

    workspace_root: str | None = None
    external_dirs: list[str] = Field(default_factory=list[str])
    exclude_dirs: list[str] = Field(default_factory=list[str])
