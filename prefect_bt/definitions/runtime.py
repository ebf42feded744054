"""Definitions of the start commands, the environment and the cache of every node."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from prefect_bt.definitions.base import StrictModel
from prefect_bt.definitions.checkpoints import CheckpointingConfig, LoadCheckpointConfig
from prefect_bt.definitions.environment_variables import EnvironmentVariables
from prefect_bt.node_paths import CACHE_BASE


class CacheConfig(StrictModel):
    """Training cache: folders that all nodes and jobs of the project or the team share."""

    enabled: bool = False
    """Whether the cache folders are mounted."""
    enable_legacy_hf_mount: bool = False
    """Whether `/root/.cache/huggingface` is a folder of the cache, too."""
    require_cache_affinity: bool = True
    """Whether the job runs only where the cache is. No effect here."""
    mount_base_path: str = CACHE_BASE
    """Parent of the folders `user_artifacts` (project) and `team_artifacts` (team)."""


class Runtime(StrictModel):
    """Start commands of a job and the environment in which they run."""

    start_commands: list[str] = Field(default_factory=list[str])
    """Shell command lines that run in order on every node; at least one is required at push."""
    environment_variables: EnvironmentVariables = Field(default_factory=EnvironmentVariables)
    """Variables of the commands: texts or secrets. `BT_*`, `PORT`, `HOSTNAME` are refused."""
    enable_cache: bool | None = None
    """Deprecated: becomes `cache_config`, and reads as None then. An error with both."""
    checkpointing_config: CheckpointingConfig = Field(default_factory=CheckpointingConfig)
    """Whether and from which folder checkpoints are uploaded."""
    load_checkpoint_config: LoadCheckpointConfig | None = None
    """Earlier checkpoints to download before the commands run."""
    cache_config: CacheConfig | None = None
    """Training cache; None: no cache."""

    @model_validator(mode="after")
    def _replace_enable_cache(self) -> Self:
        enabled = self.enable_cache
        if enabled is None:
            return self
        if self.cache_config is not None:
            raise ValueError(
                "enable_cache (deprecated) and cache_config cannot both be given; keep only "
                f"cache_config=CacheConfig(enabled={enabled}, enable_legacy_hf_mount={enabled})"
            )
        # Not by assignment: that would run this check again.
        object.__setattr__(self, "enable_cache", None)
        cache = CacheConfig(enabled=enabled, enable_legacy_hf_mount=enabled)
        object.__setattr__(self, "cache_config", cache)
        self.__pydantic_fields_set__.discard("enable_cache")
        self.__pydantic_fields_set__.add("cache_config")
        return self
