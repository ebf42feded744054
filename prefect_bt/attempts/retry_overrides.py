"""Overrides of a job's retry policy by a user, validated."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.records import RetryBudget


@dataclass(frozen=True)
class RetryOverrides:
    """The fields of RetryBudget; None leaves a number as it is. Delays in seconds."""

    user: int | None = None
    infrastructure: int | None = None
    out_of_memory: int | None = None
    without_progress: int | None = None
    first_delay: float | None = None
    factor: float | None = None
    longest_delay: float | None = None
    jitter: float | None = None
    straggler_patience: float | None = None
    stop_on_hang: bool | None = None

    def apply_to(self, base: RetryBudget) -> RetryBudget:
        """Return the policy with these overrides; DefinitionError names an invalid number.

        A number of retries for user code applies to the other failure classes too, unless they have
        overrides (docs/decisions/003).
        """
        chosen = {name: value for name, value in asdict(self).items() if value is not None}
        if self.user is not None:
            for other in ("infrastructure", "out_of_memory"):
                chosen.setdefault(other, max(getattr(base, other), self.user))
        if self.first_delay is not None and self.longest_delay is None:
            chosen["longest_delay"] = max(base.longest_delay, self.first_delay)
        return validate_budget(replace(base, **chosen))


NO_OVERRIDES = RetryOverrides()

_OPTION_NAMES = {
    "user": "retries",
    "infrastructure": "infrastructure_retries",
    "out_of_memory": "out_of_memory_retries",
    "without_progress": "without_progress",
    "first_delay": "retry_delay",
    "factor": "retry_factor",
    "longest_delay": "longest_retry_delay",
    "jitter": "retry_jitter",
    "straggler_patience": "straggler_patience",
    "stop_on_hang": "stop_on_hang",
}
"""Field -> the option's name, with which errors speak."""


def validate_budget(budget: RetryBudget) -> RetryBudget:
    """Return the policy; DefinitionError for an invalid number in it."""
    for name in ("user", "infrastructure", "out_of_memory", "without_progress"):
        if getattr(budget, name) < 0:
            raise _invalid_value_error(budget, name, "Give 0 or more.")
    for name in ("first_delay", "factor", "longest_delay", "jitter", "straggler_patience"):
        if not math.isfinite(getattr(budget, name)):
            raise _invalid_value_error(budget, name, "Give a number.")
    for name in ("first_delay", "longest_delay", "straggler_patience"):
        if getattr(budget, name) < 0:
            raise _invalid_value_error(budget, name, "Give seconds, 0 or more.")
    if budget.factor < 1:
        raise _invalid_value_error(budget, "factor", "Give 1 or more: delays do not shrink.")
    if not 0 <= budget.jitter <= 1:
        raise _invalid_value_error(budget, "jitter", "Give the part of a delay, 0 to 1.")
    if budget.longest_delay < budget.first_delay:
        raise _invalid_value_error(
            budget, "longest_delay", f"Give the first delay, {budget.first_delay:g}, or more."
        )
    return budget


def _invalid_value_error(budget: RetryBudget, field: str, next_step: str) -> DefinitionError:
    name, value = _OPTION_NAMES[field], getattr(budget, field)
    return DefinitionError(f"{name} is {value:g}.", next_step=next_step, field=name, value=value)
