"""Options of a new job that a command of the user gives, on whichever machine it is planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect_bt.attempts.retry_overrides import NO_OVERRIDES, RetryOverrides
from prefect_bt.jobs.options import SubmitOptions


@dataclass(frozen=True)
class RunOptions:
    """As the fields of SubmitOptions; an option that is None is that of the machine that plans."""

    substrate: str | None = None
    retry_choices: RetryOverrides = field(default=NO_OVERRIDES)
    deployment: str | None = None
    keep_last: int | None = None
    keep_every: int | None = None
    max_run_time: str | None = None
    here: bool = False

    def to_submit_options(self) -> SubmitOptions:
        given = {**vars(self)}
        if self.substrate is None:
            del given["substrate"]
        return SubmitOptions(**given)
