"""Options of the retry policy, for `push` and `recreate`."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from cyclopts import Parameter

from prefect_bt.attempts.retry_overrides import RetryOverrides


@Parameter(name="*")
@dataclass(frozen=True)
class RetryOptions:
    """Options that are not given keep the value of the default policy or of the recreated job."""

    retries: int | None = None
    """Attempts after failures of your own code; default: 0."""
    infrastructure_retries: int | None = None
    """Attempts after a node was lost or killed; default: 3. An attempt after progress is free."""
    out_of_memory_retries: int | None = None
    """Attempts after memory ran out; default: 0."""
    without_progress: int | None = None
    """End the job after N failed attempts in a row without a newer checkpoint; 0: never;
    default: 2."""
    retry_delay: float | None = None
    """Seconds before the next attempt; default: 1."""
    retry_factor: float | None = None
    """Factor by which the delay grows; default: 2."""
    longest_retry_delay: float | None = None
    """Longest delay in seconds; default: 30."""
    retry_jitter: float | None = None
    """Largest random part by which a delay is shortened; default: 0.2."""
    straggler_patience: float | None = None
    """Seconds without activity after which a rank is stopped when another has exited with 0;
    default: 600."""
    stop_on_hang: bool | None = None
    """Stop and retry an attempt that hangs: no step for much longer than usual, nothing printed,
    and nothing in use; default: no."""

    def build_overrides(self) -> RetryOverrides:
        return RetryOverrides(*astuple(self))  # both have the same fields in the same order


NO_RETRY_OPTIONS = RetryOptions()
