"""Block Docker Substrate: nodes as containers of the Docker Engine on one machine."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, HttpUrl, WithJsonSchema, field_validator

from prefect_bt.blocks.forms import DOCKER_LOGO
from prefect_bt.blocks.local_substrate import HostSubstrate
from prefect_bt.host.container_privileges import parse_capabilities
from prefect_bt.settings import Settings

UsualProcessLimit = Annotated[None, WithJsonSchema({"type": "null", "title": "Usual"})]


class DockerSubstrate(HostSubstrate):
    """Substrate that runs nodes as containers on the machine of the flow."""

    substrate: ClassVar[str] = "docker"

    _block_type_name: ClassVar[str | None] = "Docker Substrate"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-docker-substrate"
    _description: ClassVar[str | None] = (
        "Runs the nodes of training jobs in the job's image, as containers of the Docker Engine on "
        "the machine of the flow. The image need not contain prefect-bt."
    )
    _logo_url: ClassVar[HttpUrl | None] = DOCKER_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import DockerSubstrate

    DockerSubstrate(state_dir="/scratch/prefect-bt").save("BLOCK_NAME")
    substrate = DockerSubstrate.load("BLOCK_NAME").build()
    ```
    """

    docker_host: str = Field(
        default="",
        title="Docker host",
        description="Socket of an Engine on this machine. Empty: DOCKER_HOST, or the default.",
        examples=["unix:///run/user/1000/docker.sock"],
    )
    enforce_limits: bool = Field(
        default=False,
        title="Enforce limits",
        description="Limit each container to the CPUs and the memory of its node. Otherwise they "
        "are reserved, and a container may use what the machine has free.",
    )
    capabilities: list[str] = Field(
        default_factory=list,
        title="Additional capabilities",
        description="Linux capabilities of the containers in addition to the default ones: "
        "SYS_PTRACE for debuggers and profilers, IPC_LOCK for RDMA. SYS_ADMIN and a few others "
        "make root in a container root of the machine.",
        examples=[["SYS_PTRACE", "IPC_LOCK"]],
    )
    allow_new_privileges: bool = Field(
        default=False,
        title="Allow new privileges",
        description="Let setuid programs work in the containers: sudo for users that are not root.",
    )
    process_limit: UsualProcessLimit | Annotated[int, Field(ge=64, title="Number")] = Field(
        default=None,
        title="Process limit",
        description="Most processes and threads of a container. The usual limit is a quarter of "
        "the machine's limit, at most 32768.",
    )

    @field_validator("capabilities")
    @classmethod
    def _validate_capabilities(cls, names: list[str]) -> list[str]:
        return list(parse_capabilities(names))

    def settings(self, **fields: Any) -> Settings:
        return super().settings(
            docker_host=self.docker_host,
            docker_enforce_limits=self.enforce_limits,
            docker_capabilities=self.capabilities,
            docker_new_privileges=self.allow_new_privileges,
            docker_processes=self.process_limit,
            **fields,
        )
