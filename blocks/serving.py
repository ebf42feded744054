"""How checkpoints are served, stored: the server, and the deployment that requests are sent to."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from prefect_bt.blocks.block_docs import DOCUMENTATION, NODES_LOGO
from prefect_bt.blocks.compute import GPU
from prefect_bt.definitions import Accelerator, AcceleratorSpec, Compute, Image, SecretReference
from prefect_bt.definitions.variables import EnvironmentVariables

if TYPE_CHECKING:
    from prefect_bt.serving.serving_job import ServerOptions


class Engine(StrEnum):
    """Its name and members are part of the block's stored schema (serving.engines)."""

    AUTO = "auto"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"


class ServingEngine(Block):
    """The inference server that chosen checkpoints are served with, and what it gets."""

    _block_type_name: ClassVar[str | None] = "Serving Engine"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-serving-engine"
    _description: ClassVar[str | None] = (
        "The inference server that chosen checkpoints are served with: vLLM, or `transformers "
        "serve` where there is no accelerator; its image, accelerators and environment."
    )
    _documentation_url: ClassVar[HttpUrl | None] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import ServingEngine

    ServingEngine(engine="vllm", accelerator="H100", hf_token_secret="hf").save("h100")
    options = ServingEngine.load("h100").build()
    ```
    """

    # Required, for the reason given at TrainingCompute.node_count.
    engine: Engine = Field(
        default=...,
        title="Engine",
        description="auto is vLLM where there is an accelerator, else transformers.",
        json_schema_extra={"default": "auto"},
    )
    accelerator: GPU | None = Field(
        default=None, title="Accelerator", description="GPU type; none serves on CPUs."
    )
    accelerator_count: int = Field(
        default=1, ge=1, title="Accelerators", description="GPUs that share the model."
    )
    image: str = Field(
        default="",
        title="Image",
        description="On Docker: instead of the engine's own.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict[str, str],
        title="Environment",
        description="Variables of the server; no secrets.",
    )
    hf_token_secret: str = Field(
        default="",
        title="Hugging Face secret",
        description="Name of the secret that the base model is fetched with.",
    )
    patience_seconds: float = Field(
        default=1800.0,
        gt=0,
        title="Patience (seconds)",
        description="How long the server may take until it answers first.",
    )

    def build(self) -> ServerOptions:
        """For prefect_bt.serving.rollout.deploy."""
        from prefect_bt.serving.serving_job import (
            ServerOptions,  # every run of `train` loads blocks
        )

        variables = EnvironmentVariables(self.environment)
        if self.hf_token_secret:
            variables["HF_TOKEN"] = SecretReference(name=self.hf_token_secret)
        return ServerOptions(
            engine="" if self.engine is Engine.AUTO else self.engine.value,
            compute=self._compute(),
            environment=variables,
            image=Image(base_image=self.image) if self.image else None,
        )

    def _compute(self) -> Compute:
        if self.accelerator is None:
            return Compute()
        accelerator = Accelerator(self.accelerator.value)
        spec = AcceleratorSpec(accelerator=accelerator, count=self.accelerator_count)
        return Compute(cpu_count=0, memory="0Mi", accelerator=spec)


class ServingDeployment(Block):
    """A model's name and address, who may ask it, and what a new revision has to show first."""

    _block_type_name: ClassVar[str | None] = "Serving Deployment"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-serving-deployment"
    _description: ClassVar[str | None] = (
        "A model's name and stable address, the secret that is its API key, and the gate that a "
        "new revision has to pass before it serves."
    )
    _documentation_url: ClassVar[HttpUrl | None] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import ServingDeployment

    gate = {"prompts": [{"prompt": "2+2=", "contains": "4"}]}
    ServingDeployment(model_name="stories", port=19100, gate=gate).save("stories")
    ```
    """

    model_name: str = Field(
        title="Model name",
        pattern=r"^[0-9A-Za-z_.-]+$",
        description="What the deployment is called; its checkpoints answer under their own names.",
    )
    host: str = Field(
        default="",
        title="Host",
        description="Where it listens; 127.0.0.1, for this machine alone, when left out.",
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        title="Port",
        description="A free one, always the same, when left out.",
    )
    api_key_secret: str = Field(
        default="",
        title="API key secret",
        description="Name of the secret that clients show; everybody may ask when left out.",
    )
    gate: dict[str, Any] | None = Field(
        default=None,
        title="Gate",
        description="Prompts with expectations, or a command that decides; see docs/serving.md.",
    )
