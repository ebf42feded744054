"""Options of a new job, from the command line, a form or Python."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prefect_bt.attempts.retry_overrides import NO_OVERRIDES, RetryOverrides
from prefect_bt.credentials.secrets import SecretSource
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.provenance_record import Provenance
from prefect_bt.ledger.records import JobRecord, RetentionPolicy, RetryBudget, ServingRef
from prefect_bt.settings import Settings
from prefect_bt.text.durations import parse_duration


@dataclass(frozen=True)
class SubmitOptions:
    """Options of a job that are not part of its definition; truss does not have them.

    An option that is None keeps the value of the recreated job, or of the settings.
    """

    substrate: str = field(default_factory=lambda: Settings().substrate)
    """Substrate: `local`, `docker` or `kubernetes`."""
    retries: int | None = None
    """Attempts allowed after failures of the user's own code; None: the retry policy's number."""
    deployment: str | None = None
    """Prefect `flow/deployment` that runs the job; None: PREFECT_BT_DEPLOYMENT, else a process."""
    store: str | None = None
    """Folder or URL of the store."""
    keep_last: int | None = None
    """Number of newest checkpoints of each series to keep while the job runs."""
    keep_every: int | None = None
    """Keep also the checkpoints whose step is a multiple of this number."""
    retry_policy: RetryBudget | None = None
    """Retry policy that replaces the default one, or that of the recreated job."""
    retry_choices: RetryOverrides = NO_OVERRIDES
    """Single numbers that replace those of the retry policy."""
    secret_sources: tuple[SecretSource, ...] | None = None
    """Sources in which secrets are looked up; None: Prefect's blocks and the environment."""
    serving: ServingRef | None = None
    """Revision of a deployment that the job serves; None: a training job."""
    max_run_time: float | str | None = None
    """Seconds that the commands may run in all attempts together, or a text such as `12h`."""

    here: bool = False
    """Whether only this machine may run the job."""

    user: str = ""
    """User that pushes the job; "": the user of this process."""
    provenance: Provenance | None = None
    """Code and client of a job that another machine pushes; None: those of this process."""

    def build_retry_budget(self, old: JobRecord | None) -> RetryBudget:
        """Return the budget of a job recreated from `old`; raise DefinitionError if invalid."""
        base = self.retry_policy or (old.retries if old else None)
        if base is None:
            settings = Settings()
            base = RetryBudget(
                straggler_patience=settings.straggler_patience, stop_on_hang=settings.stop_on_hang
            )
        choices = self.retry_choices
        if self.retries is not None:
            choices = replace(choices, user=self.retries)
        return choices.apply_to(base)

    def find_max_run_time(self, old: JobRecord | None) -> float | None:
        """Return the limit in seconds; None for no limit, as for servers. Raise DefinitionError."""
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
