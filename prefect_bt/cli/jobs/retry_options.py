"""Options of the retry policy, for `push` and `recreate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.attempts.retry_overrides import RetryOverrides


@Parameter(name="*")
@dataclass(frozen=True)
class RetryOptions:
    """Options that are not given keep the value of the default policy or of the recreated job."""

    user: Annotated[
        int | None,
        Parameter(name="--retries", help="Attempts after failures of your own code; default: 0."),
    ] = None
    infrastructure: Annotated[
        int | None,
        Parameter(
            name="--infrastructure-retries",
            help="Attempts after a node was lost or killed; default: 3. An attempt after "
            "progress is free.",
        ),
    ] = None
    out_of_memory: Annotated[
        int | None,
        Parameter(
            name="--out-of-memory-retries", help="Attempts after memory ran out; default: 0."
        ),
    ] = None
    without_progress: Annotated[
        int | None,
        Parameter(
            name="--without-progress",
            help="End the job after this number of failed attempts in a row without a newer "
            "checkpoint; 0: never; default: 2.",
        ),
    ] = None
    first_delay: Annotated[
        float | None,
        Parameter(name="--retry-delay", help="Seconds before the next attempt; default: 1."),
    ] = None
    factor: Annotated[
        float | None,
        Parameter(name="--retry-factor", help="Factor by which the delay grows; default: 2."),
    ] = None
    longest_delay: Annotated[
        float | None,
        Parameter(name="--longest-retry-delay", help="Longest delay in seconds; default: 30."),
    ] = None
    jitter: Annotated[
        float | None,
        Parameter(
            name="--retry-jitter",
            help="Largest random part by which a delay is shortened; default: 0.2.",
        ),
    ] = None

    def build_overrides(self) -> RetryOverrides:

        return RetryOverrides(**asdict(self))


NO_RETRY_OPTIONS = RetryOptions()
