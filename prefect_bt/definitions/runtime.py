"""Definitions of the start commands, the environment and the cache of every node."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from prefect_bt.definitions.base import StrictModel
from prefect_bt.definitions.checkpoints import CheckpointingConfig, LoadCheckpointConfig
from prefect_bt.definitions.variables import EnvironmentVariables
from prefect_bt.node_paths import CACHE_BASE


class CacheConfig(StrictModel):
    """`mount_base_path` is the parent of the project's and the team's cache folders."""

    enabled: bool = False
    enable_legacy_hf_mount: bool = False
    require_cache_affinity: bool = True
    mount_base_path: str = CACHE_BASE


class Runtime(StrictModel):
    """Each of `start_commands` is one shell command line; they run in order on every node.

    `enable_cache` is deprecated: it becomes `cache_config` and reads as None afterwards, so that a
    dump holds null. Giving both is an error.
    """

    start_commands: list[str] = Field(default_factory=list[str])
    environment_variables: EnvironmentVariables = Field(default_factory=EnvironmentVariables)
    enable_cache: bool | None = None
    checkpointing_config: CheckpointingConfig = Field(default_factory=CheckpointingConfig)
    load_checkpoint_config: LoadCheckpointConfig | None = None
    cache_config: CacheConfig | None = None

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
