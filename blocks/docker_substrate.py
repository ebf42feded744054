"""Nodes as containers of one machine's Docker Engine, with its settings stored."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, HttpUrl

from prefect_bt.blocks.local_substrate import HostSubstrate
from prefect_bt.blocks.pages import DOCKER_LOGO, DOCUMENTATION
from prefect_bt.substrates.protocol import Substrate


class DockerSubstrate(HostSubstrate):
    """Runs the nodes of training jobs as containers of the machine the flow runs on."""

    substrate: ClassVar[str] = "docker"

    _block_type_name: ClassVar[str | None] = "Docker Substrate"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-docker-substrate"
    _description: ClassVar[str | None] = (
        "Runs the nodes of training jobs as containers of the Docker Engine on the machine the "
        "flow runs on, each in the job's image. The image needs nothing of ours."
    )
    _documentation_url: ClassVar[HttpUrl | None] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl | None] = DOCKER_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import DockerSubstrate

    DockerSubstrate(state_dir="/scratch/prefect-bt").save("gpu-box")
    substrate = DockerSubstrate.load("gpu-box").build()
    ```
    """

    docker_host: str = Field(
        default="",
        title="Docker host",
        description="Socket of an Engine on this machine; empty: DOCKER_HOST, or the usual one.",
        examples=["unix:///run/user/1000/docker.sock"],
    )
    enforce_limits: bool = Field(
        default=False,
        title="Enforce limits",
        description="Hold each container to the CPUs and the memory that its node gets. Otherwise "
        "they are reserved, and a container may use what the machine has free.",
    )

    def build(self) -> Substrate:
        """The engine's Docker substrate; `grace_seconds` belongs to plans, not to it."""
        from prefect_bt.substrates import open_substrate

        return open_substrate(
            "docker",
            state_dir=self.folder,
            orphan_deadline=self.orphan_deadline_seconds,
            docker_host=self.docker_host,
            enforce_limits=self.enforce_limits,
        )
