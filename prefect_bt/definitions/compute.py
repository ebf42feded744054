"""Definitions of nodes and their resources: `Compute`, `AcceleratorSpec`, memory sizes."""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, cast

from pydantic import Field, model_serializer, model_validator

from prefect_bt.definitions.base import Integer, OpenModel, StrictModel
from prefect_bt.errors import DefinitionError


class AvailabilityModel(StrEnum):
    """Whether the nodes may be preempted."""

    DEDICATED = "dedicated"
    SPOT = "spot"


class Accelerator(StrEnum):
    """GPU types by their Baseten names."""

    _B10 = "B10"
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


_COUNT: Final = re.compile(r"0*([1-9]\d{0,5})", re.ASCII)
_MAX_SHOWN: Final = 20


def parse_accelerator(text: str) -> tuple[Accelerator, int]:
    """Parse `"H100:2"` to `(Accelerator.H100, 2)`. Ignore surrounding blanks.

    `"H100:2:3"` is parsed as one H100, as in truss. Raises ValueError.
    """
    kind, *rest = text.strip().split(":")
    if not kind:
        raise ValueError('the accelerator type is empty; write for example "H100" or "H100:8"')
    names = [member.value for member in Accelerator]
    if kind not in names:
        hint = f' (did you mean "{kind.upper()}"?)' if kind.upper() in names else ""
        raise ValueError(f'no accelerator is called "{kind}"{hint}; known: {", ".join(names)}')
    if len(rest) != 1:
        return Accelerator(kind), 1
    if not (count := _COUNT.fullmatch(rest[0])):
        given = rest[0] if len(rest[0]) <= _MAX_SHOWN else f"{rest[0][:_MAX_SHOWN]}…"
        raise ValueError(
            f'the count "{given}" after "{kind}:" must be a positive integer of at most 6 digits, '
            f'for example "{kind}:8"'
        )
    return Accelerator(kind), int(count[1])


class AcceleratorSpec(OpenModel):
    """Type and number of the GPUs of a node. A text such as `"H100:8"` is converted."""

    accelerator: Accelerator | None = None
    """Type of the GPUs; None: no GPU. GPUs of another type are used with a note."""
    count: Integer = Field(default=1, ge=0)
    """GPUs of each node; 0: no GPU."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, str):
            accelerator, count = parse_accelerator(value)
            return {"accelerator": accelerator, "count": count}
        if value is None:
            return cast("dict[str, object]", {})
        return value

    @model_serializer(mode="plain")
    def _as_text(self) -> str | None:
        if self.accelerator is None or self.count == 0:
            return None
        name = self.accelerator.value
        return name if self.count == 1 else f"{name}:{self.count}"


class Compute(StrictModel):
    """Number of nodes, and the least resources of each node.

    A node with GPUs gets the machine's share of CPUs and memory for them. The definition accepts
    any text as `memory`, as in truss; planning parses it with `parse_memory`.
    """

    node_count: Integer = 1
    """Nodes of the job, at least 1. They start and end together."""
    cpu_count: Integer = 1
    """CPU cores of each node, as a minimum."""
    memory: str = "2Gi"
    """Memory of each node, as a minimum: `"64Gi"` or `"64GB"`."""
    accelerator: AcceleratorSpec | None = None
    """GPUs of each node, such as `"H100:8"`; None: CPUs only."""
    availability_model: AvailabilityModel = AvailabilityModel.DEDICATED
    """Whether the job may exceed its team's limit, and is stopped when another needs its place."""

    def model_dump(self, **kwargs: Any) -> dict[str, Any]:
        """Dump as pydantic does, but `accelerator` as an object, `availability_model` as text."""
        data = super().model_dump(**kwargs)
        spec = self.accelerator
        if "accelerator" in data and spec is not None and spec.accelerator is not None:
            data["accelerator"] = {"accelerator": spec.accelerator.value, "count": spec.count}
        if "availability_model" in data:
            data["availability_model"] = self.availability_model.value
        return data


_MEMORY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_FACTORS: Final = {"": 1} | {
    f"{letter}{i}": base**power
    for power, letter in enumerate("kmgtpe", 1)
    for i, base in (("", 1000), ("i", 1024))
}
_AMBIGUOUS: Final = tuple("mgtpe")
_MEMORY_HELP: Final = 'Write a number and a unit, for example "512Mi", "64Gi" or "64GB".'


def parse_memory(text: str) -> int:
    """Return bytes: `"2Gi"` -> 2147483648, `"64GB"` -> 64000000000, `"1024"` -> 1024.

    Units are those of Kubernetes with an optional B: `Ki Mi Gi Ti Pi Ei` are powers of 1024,
    `K M G T P E` of 1000. A single lower-case letter other than `k` is refused, because `m` is a
    thousandth to Kubernetes and a mebibyte to Docker. Raise DefinitionError.
    """
    match = _MEMORY.fullmatch(text)
    unit = match[2] if match else ""
    factor = None if unit in _AMBIGUOUS else _FACTORS.get(unit.lower().removesuffix("b"))
    if match is None:
        why = "is not an amount of memory."
    elif factor is None:
        why = f'has the unit "{unit}", which is unknown or ambiguous.'
    elif (size := int(Decimal(match[1]) * factor)) < 1:
        why = "is less than one byte."
    else:
        return size
    raise DefinitionError(
        f'The memory "{text}" {why}', next_step=_MEMORY_HELP, field="compute.memory", value=text
    )
