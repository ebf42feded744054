"""Nodes as processes of one machine, with its settings stored."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from prefect_bt.blocks.block_docs import DOCUMENTATION, PROCESS_LOGO
from prefect_bt.substrates.protocol import Substrate


class HostSubstrate(Block):
    """What every place on one machine is told; no block type by itself."""

    substrate: ClassVar[str]
    """Its name in prefect_bt.substrates.SUBSTRATES."""

    # Required, for the reason given at TrainingCompute.node_count.
    state_dir: str = Field(
        default=...,
        min_length=1,
        title="State folder",
        description="Folder on a local disk for running nodes; all who watch a job name the same.",
        examples=["~/.local/state/prefect-bt"],
    )
    grace_seconds: float = Field(
        default=30.0,
        ge=0,
        title="Grace (seconds)",
        description="From the polite signal to the forced one when a job is stopped.",
    )
    orphan_deadline_seconds: float = Field(
        default=60.0,
        gt=0,
        title="Orphan deadline (seconds)",
        description="How long a node goes on when nothing watches over its job any more.",
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
    _documentation_url: ClassVar[HttpUrl | None] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl | None] = PROCESS_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import LocalSubstrate

    LocalSubstrate(state_dir="/scratch/prefect-bt").save("big-disk")
    substrate = LocalSubstrate.load("big-disk").build()
    ```
    """

    def build(self) -> Substrate:
        """The engine's local substrate; `grace_seconds` belongs to plans, not to it."""
        from prefect_bt.substrates import open_substrate

        return open_substrate(
            "local", state_dir=self.folder, orphan_deadline=self.orphan_deadline_seconds
        )
