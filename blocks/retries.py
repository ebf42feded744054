"""Block Retry Policy: attempts by class of failure, and the delays between attempts."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, HttpUrl, model_validator

from prefect_bt.attempts.retry_overrides import validate_budget
from prefect_bt.blocks.forms import NODES_LOGO, FormBlock
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.records import RetryBudget


class RetryPolicy(FormBlock):
    """Number of attempts after failures of each class, and the delays between attempts."""

    _block_type_name: ClassVar[str | None] = "Retry Policy"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-retry-policy"
    _description: ClassVar[str | None] = (
        "Number of attempts of a training job after failures of each class, and the delays between "
        "attempts. An infrastructure failure after a newer checkpoint does not count."
    )
    _logo_url: ClassVar[HttpUrl | None] = NODES_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import RetryPolicy

    RetryPolicy(user=1, infrastructure=10, first_delay_seconds=5).save("BLOCK_NAME")
    policy = RetryPolicy.load("BLOCK_NAME").build()
    ```
    """

    user: int = Field(
        default=0,
        ge=0,
        title="User code",
        description="Further attempts allowed after a start command failed by itself.",
    )
    infrastructure: int = Field(
        default=3,
        ge=0,
        title="Infrastructure",
        description="Attempts allowed after a node was lost, preempted or killed from outside. An "
        "attempt after progress is free.",
    )
    out_of_memory: int = Field(
        default=0,
        ge=0,
        title="Out of memory",
        description="Attempts allowed after the memory ran out.",
    )
    without_progress: int = Field(
        default=2,
        ge=0,
        title="Without progress",
        description="Failed attempts in a row without a newer checkpoint that end the job. 0: no "
        "limit.",
    )
    first_delay_seconds: float = Field(
        default=1.0,
        ge=0,
        title="First delay (seconds)",
        description="Seconds between the first failure and the next attempt.",
    )
    factor: float = Field(
        default=2.0,
        ge=1,
        title="Factor",
        description="Number by which the delay is multiplied after every failure in a row.",
    )
    longest_delay_seconds: float = Field(
        default=30.0,
        ge=0,
        title="Longest delay (seconds)",
        description="Most seconds between two attempts.",
    )
    jitter: float = Field(
        default=0.2,
        ge=0,
        le=1,
        title="Jitter",
        description="Largest part of a delay, from 0 to 1, that is subtracted at random, so that "
        "many jobs do not start at once.",
    )
    straggler_patience_seconds: float = Field(
        default=600.0,
        ge=0,
        title="Straggler patience (seconds)",
        description="Seconds without activity after which a rank is stopped when another rank has "
        "exited with 0.",
    )
    stop_on_hang: bool = Field(
        default=False,
        title="Stop on a hang",
        description="Whether an attempt that hangs (no step for much longer than usual, nothing "
        "printed and nothing in use) is stopped and retried as after a lost node.",
    )

    @model_validator(mode="after")
    def _validate_policy(self) -> Self:
        try:
            self.build()
        except DefinitionError as error:
            raise ValueError(str(error)) from error
        return self

    def build(self) -> RetryBudget:
        """Return the policy of a job's record."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        given = {name.removesuffix("_seconds"): value for name, value in values.items()}
        return validate_budget(RetryBudget(**given))
