"""Nodes as processes of one machine, with its settings stored."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, HttpUrl

from prefect_bt.blocks.block_docs import PROCESS_LOGO
from prefect_bt.blocks.forms import FormBlock
from prefect_bt.substrates.protocol import Substrate


class HostSubstrate(FormBlock):
    """Settings of every substrate on one machine; no block type by itself."""

    substrate: ClassVar[str]
    """Its name in prefect_bt.substrates.SUBSTRATES."""

    state_dir: str = Field(
        default="~/.local/state/prefect-bt",
        min_length=1,
        title="State folder",
        description="Folder on a local disk for running nodes. Commands that watch or recover a "
        "job use the same one (PREFECT_BT_STATE_DIR).",
    )
    grace_seconds: float = Field(
        default=30.0,
        ge=0,
        title="Grace period (seconds)",
        description="Seconds from SIGTERM to SIGKILL when a job is stopped.",
    )
    orphan_deadline_seconds: float = Field(
        default=60.0,
        gt=0,
        title="Orphan deadline (seconds)",
        description="Seconds that a node continues after its supervisor died.",
    )

    @property
    def folder(self) -> Path:
        """`state_dir` with `~` expanded on this machine."""
        return Path(self.state_dir).expanduser()


class LocalSubstrate(HostSubstrate):
    """Runs the nodes of training jobs as processes of the machine the flow runs on."""

    substrate: ClassVar[str] = "local"

    _block_type_name: ClassVar[str | None] = "Local Substrate"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-local-substrate"
    _description: ClassVar[str | None] = (
        "Runs the nodes of training jobs as processes of the machine the flow runs on, each in a "
        "file system view of its own. The job's image is not used here."
    )
    _logo_url: ClassVar[HttpUrl | None] = PROCESS_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import LocalSubstrate

    LocalSubstrate(state_dir="/scratch/prefect-bt").save("BLOCK_NAME")
    substrate = LocalSubstrate.load("BLOCK_NAME").build()
    ```
    """

    def build(self) -> Substrate:
        """Return the local substrate; `grace_seconds` is a setting of plans, not of it."""
        from prefect_bt.substrates import open_substrate

        return open_substrate(
            "local", state_dir=self.folder, orphan_deadline=self.orphan_deadline_seconds
        )
