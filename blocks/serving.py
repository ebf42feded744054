"""Blocks Serving Engine and Serving Deployment: the inference server and its address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, HttpUrl, WithJsonSchema

from prefect_bt.blocks.compute import GPUChoice
from prefect_bt.blocks.forms import NODES_LOGO, FormBlock, FormChoice
from prefect_bt.definitions import AcceleratorSpec, Compute, Image, SecretReference
from prefect_bt.definitions.environment_variables import EnvironmentVariables

if TYPE_CHECKING:
    from prefect_bt.serving.serving_job import ServerOptions


class Engine(FormChoice):
    """Inference engines (serving.engines). Name and members are part of the stored schema."""

    AUTO = "auto"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"


class ServingEngine(FormBlock):
    """Inference server for checkpoints, with its image, accelerators and environment."""

    _block_type_name: ClassVar[str | None] = "Serving Engine"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-serving-engine"
    _description: ClassVar[str | None] = (
        "Inference server for checkpoints: vLLM, or `transformers serve` without an accelerator; "
        "with its image, accelerators and environment."
    )
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import ServingEngine

    ServingEngine(engine="vllm", accelerator="H100", hf_token_secret="hf").save("BLOCK_NAME")
    options = ServingEngine.load("BLOCK_NAME").build()
    ```
    """

    engine: Engine = Field(
        default=Engine.AUTO,
        title="Engine",
        description="Inference engine; auto is vLLM with a GPU and transformers without one.",
    )
    accelerator: GPUChoice = Field(
        default=None, title="GPU type", description="Type of the GPUs of the server."
    )
    accelerator_count: int = Field(
        default=1,
        ge=1,
        title="GPUs",
        description="Number of GPUs that share the model; not used without a GPU type.",
    )
    image: str = Field(
        default="",
        title="Image",
        description="Image on Docker. Empty: the default image of the engine.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict[str, str],
        title="Environment",
        description="Environment variables of the server as a JSON object, without secrets.",
    )
    hf_token_secret: str = Field(
        default="",
        title="Hugging Face secret",
        description="Name of the secret with the token that downloads the base model.",
    )
    patience_seconds: float = Field(
        default=1800.0,
        gt=0,
        title="Start timeout (seconds)",
        description="Seconds in which the server must start and answer a first request.",
    )

    def build(self) -> ServerOptions:
        """Return the options for prefect_bt.serving.rollout.deploy."""
        # Imported here, because every run of `train` loads blocks.
        from prefect_bt.serving.serving_job import ServerOptions

        variables = EnvironmentVariables(self.environment)
        if self.hf_token_secret:
            variables["HF_TOKEN"] = SecretReference(name=self.hf_token_secret)
        compute = Compute()
        if self.accelerator is not None:
            spec = AcceleratorSpec.model_validate(f"{self.accelerator}:{self.accelerator_count}")
            compute = Compute(cpu_count=0, memory="0Mi", accelerator=spec)
        return ServerOptions(
            engine="" if self.engine is Engine.AUTO else self.engine.value,
            compute=compute,
            environment=variables,
            image=Image(base_image=self.image) if self.image else None,
        )


FreePort = Annotated[None, WithJsonSchema({"type": "null", "title": "Any free port"})]
NoGate = Annotated[None, WithJsonSchema({"type": "null", "title": "None"})]


class ServingDeployment(FormBlock):
    """Name and address of a served model, its API key, and the gate for new revisions."""

    _block_type_name: ClassVar[str | None] = "Serving Deployment"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-serving-deployment"
    _description: ClassVar[str | None] = (
        "Name and stable address of a served model, the secret with its API key, and the gate that "
        "a new revision must pass before it gets requests."
    )
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import ServingDeployment

    gate = {"prompts": [{"prompt": "2+2=", "contains": "4"}]}
    ServingDeployment(model_name="stories", port=19100, gate=gate).save("BLOCK_NAME")
    deployment = ServingDeployment.load("BLOCK_NAME")
    ```
    """

    model_name: str = Field(
        title="Model name",
        pattern=r"^[0-9A-Za-z_.-]+$",
        description="Name of the deployment. Each checkpoint also has its own name in requests.",
    )
    host: str = Field(
        default="",
        title="Host",
        description=(
            "Address on which the deployment listens. Empty: 127.0.0.1, only for this machine."
        ),
    )
    port: FreePort | Annotated[int, Field(ge=1, le=65535, title="Port")] = Field(
        default=None,
        title="Port",
        description=(
            "TCP port on which the deployment listens. Empty: a free port, chosen once and kept."
        ),
    )
    api_key_secret: str = Field(
        default="",
        title="API key secret",
        description="Name of the secret that clients send as the API key. Empty: no key is needed.",
    )
    gate: NoGate | Annotated[dict[str, Any], Field(title="Gate")] = Field(
        default=None,
        title="Gate",
        description="JSON object with prompts and expected answers, or with a test command.",
    )
