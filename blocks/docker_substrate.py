"""Nodes as containers of one machine's Docker Engine, with its settings stored."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, HttpUrl, field_validator

from prefect_bt.blocks.block_docs import DOCKER_LOGO, DOCUMENTATION
from prefect_bt.blocks.local_substrate import HostSubstrate
from prefect_bt.host.container_privileges import Privileges, parse_capabilities
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
    capabilities: list[str] = Field(
        default_factory=list,
        title="More capabilities",
        description="Linux capabilities of the containers beyond the usual ones: SYS_PTRACE for "
        "debuggers and profilers, IPC_LOCK for RDMA. Some of them, SYS_ADMIN first, make root in a "
        "container root of the machine.",
        examples=[["SYS_PTRACE", "IPC_LOCK"]],
    )
    allow_new_privileges: bool = Field(
        default=False,
        title="Allow new privileges",
        description="Let setuid programs work in the containers: sudo for users that are not root.",
    )
    process_limit: int | None = Field(
        default=None,
        ge=64,
        title="Process limit",
        description="Processes and threads that a container may have at once; empty: a quarter of "
        "what the machine can have, at most 32768.",
    )

    @field_validator("capabilities")
    @classmethod
    def _validate_capabilities(cls, names: list[str]) -> list[str]:
        return list(parse_capabilities(names))

    @property
    def privileges(self) -> Privileges:
        """Return the privileges of its containers."""
        return Privileges(tuple(self.capabilities), self.allow_new_privileges, self.process_limit)

    def build(self) -> Substrate:
        """The engine's Docker substrate; `grace_seconds` belongs to plans, not to it."""
        from prefect_bt.substrates import open_substrate

        return open_substrate(
            "docker",
            state_dir=self.folder,
            orphan_deadline=self.orphan_deadline_seconds,
            docker_host=self.docker_host,
            enforce_limits=self.enforce_limits,
            privileges=self.privileges,
        )
