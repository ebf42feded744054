"""What each node of a job has: the compute part of a definition, stored."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, field_validator

from prefect_bt.blocks.block_docs import DOCUMENTATION, NODES_LOGO
from prefect_bt.definitions import (
    Accelerator,
    AcceleratorSpec,
    AvailabilityModel,
    Compute,
    parse_memory,
)
from prefect_bt.errors import DefinitionError


class GPU(StrEnum):
    """The GPU types a form offers: those of definitions, without the internal one.

    A class of its own because its name and members are part of the block's stored schema.
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


class TrainingCompute(Block):
    """How many nodes a training job takes, and what is in each."""

    _block_type_name: ClassVar[str | None] = "Training Compute"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-compute"
    _description: ClassVar[str | None] = (
        "How many nodes a training job takes and what is in each: CPUs, memory, accelerators. "
        "Given to a run, it replaces the compute of the job's definition."
    )
    _documentation_url: ClassVar[HttpUrl | None] = DOCUMENTATION
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import TrainingCompute

    two_nodes = TrainingCompute(node_count=2, accelerator="H100", accelerator_count=8)
    two_nodes.save("h100x16")
    compute = TrainingCompute.load("h100x16").build()
    ```
    """

    # Required although 1 is what most give: Prefect refuses a reference to a block without a
    # required field as the value of an optional flow parameter (409).
    node_count: int = Field(
        default=...,
        ge=1,
        title="Nodes",
        description="Machines that train together; 1 for most jobs.",
        json_schema_extra={"default": 1},
    )
    cpu_count: int = Field(
        default=1, ge=1, title="CPUs", description="At least this many CPUs a node."
    )
    memory: str = Field(
        default="2Gi",
        title="Memory",
        description="At least this much memory a node: 512Mi, 64Gi, 64GB.",
    )
    accelerator: GPU | None = Field(
        default=None, title="Accelerator", description="GPU type; none is a CPU job."
    )
    accelerator_count: int = Field(
        default=1,
        ge=1,
        title="Accelerators",
        description="GPUs a node; without an accelerator type it means nothing.",
    )
    availability: AvailabilityModel = Field(
        default=AvailabilityModel.DEDICATED,
        title="Availability",
        description="A spot machine may be taken away; the job then goes on from its checkpoints.",
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
        """The compute of a definition."""
        spec = None
        if self.accelerator is not None:
            accelerator = Accelerator(self.accelerator.value)
            spec = AcceleratorSpec(accelerator=accelerator, count=self.accelerator_count)
        return Compute(
            node_count=self.node_count,
            cpu_count=self.cpu_count,
            memory=self.memory,
            accelerator=spec,
            availability_model=self.availability,
        )
