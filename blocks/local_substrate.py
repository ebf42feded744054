"""Block Local Substrate: nodes as processes of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, HttpUrl

from prefect_bt.blocks.forms import PROCESS_LOGO, FormBlock
from prefect_bt.settings import Settings
from prefect_bt.substrates.protocol import Substrate


class SubstrateBlock(FormBlock):
    """Base class of the substrates; not a block type."""

    substrate: ClassVar[str]
    """Name of the substrate in prefect_bt.substrates.SUBSTRATES."""

    def settings(self) -> Settings:
        """Return this process's settings, overridden by the fields of the block."""
        raise NotImplementedError

    def build(self, store: str = "") -> Substrate:
        """Return the substrate. `grace_seconds` is a setting of plans, not of substrates.

        `store` is the URL of the jobs' store, for Kubernetes; "" for the store of the settings.
        """
        from prefect_bt.substrates import open_substrate

        options = self.settings().substrate_options(self.substrate, store=store)
        return open_substrate(self.substrate, **options)


class HostSubstrate(SubstrateBlock):
    """Base class with the fields of every substrate on one machine; not a block type."""

    state_dir: str = Field(
        default="~/.local/state/prefect-bt",
        min_length=1,
        title="State folder",
        description="Folder on a local disk for running nodes. Commands that watch or recover a "
        "job need the same folder in PREFECT_BT_STATE_DIR.",
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
        description="Seconds that a node continues while no process owns its job.",
    )

    def settings(self, **fields: Any) -> Settings:
        return Settings(
            substrate=self.substrate,
            state_dir=Path(self.state_dir).expanduser(),
            grace=self.grace_seconds,
            orphan_deadline=self.orphan_deadline_seconds,
            **fields,
        )


class LocalSubstrate(HostSubstrate):
    """Substrate that runs nodes as processes on the machine of the flow."""

    substrate: ClassVar[str] = "local"

    _block_type_name: ClassVar[str | None] = "Local Substrate"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-local-substrate"
    _description: ClassVar[str | None] = (
        "Runs the nodes of training jobs as processes on the machine of the flow. Each node has "
        "its own view of the file system. The job's image is not used."
    )
    _logo_url: ClassVar[HttpUrl | None] = PROCESS_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import LocalSubstrate

    LocalSubstrate(state_dir="/scratch/prefect-bt").save("BLOCK_NAME")
    substrate = LocalSubstrate.load("BLOCK_NAME").build()
    ```
    """

    python: str = Field(
        default="",
        title="Python",
        description="Python interpreter of the jobs, a path or a name on PATH. Empty: an activated "
        "environment, that of the version of an official Python image, or the flow's own.",
    )
    python_environment: bool = Field(
        default=True,
        title="Python environment per project",
        description="Run the commands in a virtual environment of the project, so that pip install "
        "changes no other one and is there at the next job.",
    )

    def settings(self, **fields: Any) -> Settings:
        return super().settings(
            python=self.python, python_environment=self.python_environment, **fields
        )
