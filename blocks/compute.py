"""Block Training Compute: the compute of a definition."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, HttpUrl, WithJsonSchema, field_validator

from prefect_bt.blocks.forms import NODES_LOGO, FormBlock, FormChoice
from prefect_bt.definitions import AcceleratorSpec, AvailabilityModel, Compute, parse_memory
from prefect_bt.errors import DefinitionError


class GPU(FormChoice):
    """GPU types of definitions, without the internal one.

    It is a separate class because its name and members are part of the stored schema.
    """

    T4 = "T4"
    L4 = "L4"
    A10G = "A10G"
    V100 = "V100"
    A100 = "A100"
    A100_40GB = "A100_40GB"
    H100 = "H100"
    H200 = "H200"
    H100_40GB = "H100_40GB"
    B200 = "B200"
    L40S = "L40S"
    RTX_PRO_6000 = "RTX_PRO_6000"
    B300 = "B300"
    GB300 = "GB300"


class Availability(FormChoice):
    """Values of AvailabilityModel."""

    DEDICATED = "dedicated"
    SPOT = "spot"


GPUChoice = (
    Annotated[None, WithJsonSchema({"type": "null", "title": "None (CPUs only)"})]
    | Annotated[GPU, Field(title="GPU")]
)
"""None is the first choice, because the first UI opens a form with it."""


class TrainingCompute(FormBlock):
    """Nodes of a training job and their resources."""

    _block_type_name: ClassVar[str | None] = "Training Compute"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-compute"
    _description: ClassVar[str | None] = (
        "Number of nodes of a training job, and the CPUs, memory and GPUs of each node. A run "
        "with this block uses it instead of the compute of the definition."
    )
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import TrainingCompute

    two_nodes = TrainingCompute(node_count=2, accelerator="H100", accelerator_count=8)
    two_nodes.save("BLOCK_NAME")
    compute = TrainingCompute.load("BLOCK_NAME").build()
    ```
    """

    node_count: int = Field(
        default=1,
        ge=1,
        title="Nodes",
        description="Number of nodes that train together; 1 for most jobs.",
    )
    cpu_count: int = Field(
        default=1, ge=1, title="CPUs per node", description="At least this many CPUs for each node."
    )
    memory: str = Field(
        default="2Gi",
        title="Memory per node",
        description="At least this much memory for each node, with its unit: 512Mi, 64Gi, 64GB.",
    )
    accelerator: GPUChoice = Field(
        default=None, title="GPU type", description="Type of the GPUs of each node."
    )
    accelerator_count: int = Field(
        default=1,
        ge=1,
        title="GPUs per node",
        description="Number of GPUs of each node; not used without a GPU type.",
    )
    availability: Availability = Field(
        default=Availability.DEDICATED,
        title="Availability",
        description="Whether the nodes may be preempted: spot nodes may. It has no effect yet.",
    )

    @field_validator("memory")
    @classmethod
    def _validate_memory(cls, value: str) -> str:
        try:
            parse_memory(value)
        except DefinitionError as error:
            raise ValueError(str(error)) from error
        return value

    def build(self) -> Compute:
        """Return the compute of a definition."""
        gpus = self.accelerator and f"{self.accelerator}:{self.accelerator_count}"
        return Compute(
            node_count=self.node_count,
            cpu_count=self.cpu_count,
            memory=self.memory,
            accelerator=AcceleratorSpec.model_validate(gpus) if gpus else None,
            availability_model=AvailabilityModel(self.availability.value),
        )
