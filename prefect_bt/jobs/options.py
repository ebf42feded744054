"""Options of a new job: from the command line, the form or Python to the job's record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prefect_bt.attempts.retry_overrides import NO_OVERRIDES, RetryOverrides
from prefect_bt.credentials.secrets import SecretSource
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.records import JobRecord, RetentionPolicy, RetryBudget, ServingRef
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_duration


@dataclass(frozen=True)
class SubmitOptions:
    """Options of this package that truss does not have; never a field of a definition.

    `substrate` is a name in substrates.SUBSTRATES. `retries` is the number of failures of the
    user's own code that are retried; None keeps the policy's number. `retry_policy` replaces the
    default policy, or that of the recreated job; `retry_choices` replaces single numbers of it.
    `deployment` is a Prefect `flow/deployment`; None takes the setting. `keep_last` and
    `keep_every` are the retention policy (records.RetentionPolicy). `serving` is the revision that
    the job serves. `max_run_time` limits the commands of all attempts together, in seconds or as
    `12h`. An option that is None keeps the value of the recreated job or of the settings.
    """

    substrate: str = field(default_factory=lambda: Settings().substrate)
    retries: int | None = None
    deployment: str | None = None
    store: str | None = None
    keep_last: int | None = None
    keep_every: int | None = None
    retry_policy: RetryBudget | None = None
    retry_choices: RetryOverrides = NO_OVERRIDES
    secret_sources: tuple[SecretSource, ...] | None = None
    serving: ServingRef | None = None
    max_run_time: float | str | None = None

    def build_retry_budget(self, old: JobRecord | None) -> RetryBudget:
        """Return the budget of a job recreated from `old`; raise DefinitionError if invalid."""
        base = self.retry_policy or (old.retries if old else RetryBudget())
        choices = self.retry_choices
        if self.retries is not None:
            choices = replace(choices, user=self.retries)
        return choices.apply_to(base)

    def find_max_run_time(self, old: JobRecord | None) -> float | None:
        """Return the limit in seconds, None for no limit (as servers); raise DefinitionError."""
        if self.max_run_time is not None:
            return parse_duration(self.max_run_time, field="max_run_time")
        if self.serving is not None:
            return None
        return old.max_run_time if old else Settings().max_run_time

    def build_retention(self, old: JobRecord | None) -> RetentionPolicy:
        """Return the policy of a job recreated from `old`; raise DefinitionError if invalid."""
        given = {"keep_last": self.keep_last, "keep_every": self.keep_every}
        for name, value in given.items():
            if value is not None and value < 1:
                message = f"{name} is {value}."
                raise DefinitionError(message, next_step="Give 1 or more.", field=name)
        if any(value is not None for value in given.values()):
            return RetentionPolicy(**given)
        if old is not None:
            return old.retention
        settings = Settings()
        return RetentionPolicy(settings.keep_last, settings.keep_every)
