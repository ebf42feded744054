"""Block Training Image: the image of a definition."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, HttpUrl

from prefect_bt.blocks.forms import DOCKER_LOGO, FormBlock
from prefect_bt.blocks.registry import RegistryAccess
from prefect_bt.definitions import Image


class TrainingImage(FormBlock):
    """Container image of a training job; credentials are names of secrets."""

    _block_type_name: ClassVar[str | None] = "Training Image"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-image"
    _description: ClassVar[str | None] = (
        "Container image of a training job, and the login of its registry. Credentials are names "
        "of secrets, never values. A run with this block uses it instead of the image of the "
        "definition."
    )
    _logo_url: ClassVar[HttpUrl | None] = DOCKER_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import TrainingImage
    from prefect_bt.blocks.registry import RegistryLogin

    TrainingImage(
        base_image="ghcr.io/team/train:1",
        registry_access=RegistryLogin(registry="ghcr.io", login_secret="ghcr_login"),
    ).save("BLOCK_NAME")
    image = TrainingImage.load("BLOCK_NAME").build()
    ```
    """

    base_image: str = Field(
        min_length=1,
        title="Image",
        description="Reference for docker pull: pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime.",
    )
    registry_access: RegistryAccess = Field(
        default=None, title="Registry access", description="Login of a private registry."
    )

    def build(self) -> Image:
        """Return the image of a definition."""
        access = self.registry_access
        return Image(base_image=self.base_image, docker_auth=access.build() if access else None)
