"""Paths inside a node that users' scripts rely on; never renamed, only added to."""

from __future__ import annotations

from typing import Final

WORKSPACE_DIR: Final = "/b10/workspace"
CHECKPOINT_DIR: Final = "/mnt/ckpts"
SCRATCH_DIR: Final = "/mnt/bt-scratch"
METRICS_FILE: Final = f"{SCRATCH_DIR}/metrics.jsonl"
LOADED_CHECKPOINTS_DIR: Final = "/tmp/loaded_checkpoints"  # noqa: S108
CACHE_BASE: Final = "/root/.cache"
PROJECT_CACHE_NAME: Final = "user_artifacts"
TEAM_CACHE_NAME: Final = "team_artifacts"
HF_CACHE_NAME: Final = "huggingface"
HF_CACHE_DIR: Final = "/root/.cache/huggingface"
