"""Which container image a job runs in, and how its registry is entered."""

from __future__ import annotations

from typing import ClassVar

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from prefect_bt.blocks.block_docs import DOCKER_LOGO, DOCUMENTATION
from prefect_bt.blocks.registry import RegistryAccess
from prefect_bt.definitions import Image


class TrainingImage(Block):
    """The container image of a training job; credentials by the names of secrets."""

    _block_type_name: ClassVar[str | None] = "Training Image"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-image"
    _description: ClassVar[str | None] = (
        "The container image a training job runs in, and how its registry is entered. Credentials "
        "are names of secrets, never values. Given to a run, it replaces the definition's image."
    )
    _documentation_url: ClassVar[HttpUrl | None] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl | None] = DOCKER_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import RegistryLogin, TrainingImage

    TrainingImage(
        base_image="ghcr.io/team/train:1",
        registry_access=RegistryLogin(registry="ghcr.io", login_secret="ghcr_login"),
    ).save("team-train")
    image = TrainingImage.load("team-train").build()
    ```
    """

    base_image: str = Field(
        default=...,
        min_length=1,
        title="Image",
        description="As docker pull takes it: pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime.",
    )
    registry_access: RegistryAccess | None = Field(
        default=None,
        title="Registry access",
        description="How a private registry is entered; nothing for public images.",
    )

    def build(self) -> Image:
        """The image of a definition."""
        access = self.registry_access
        return Image(base_image=self.base_image, docker_auth=access.build() if access else None)
