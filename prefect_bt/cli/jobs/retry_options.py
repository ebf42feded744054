"""The retry policy as options: those of `push` and `recreate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from prefect_bt.attempts.retry_overrides import RetryOverrides


@Parameter(name="*")
@dataclass(frozen=True)
class RetryOptions:
    """What is left out stays: the default policy, or that of the job that is repeated."""

    user: Annotated[
        int | None,
        Parameter(name="--retries", help="New attempts after failures of your own code."),
    ] = None
    infrastructure: Annotated[
        int | None,
        Parameter(
            name="--infrastructure-retries",
            help="New attempts after lost or killed nodes (3); those after progress do not count.",
        ),
    ] = None
    out_of_memory: Annotated[
        int | None,
        Parameter(name="--out-of-memory-retries", help="New attempts after memory ran out (0)."),
    ] = None
    without_progress: Annotated[
        int | None,
        Parameter(
            name="--without-progress",
            help="So many failed attempts in a row without a newer checkpoint end the job (2); "
            "0 never does.",
        ),
    ] = None
    first_delay: Annotated[
        float | None,
        Parameter(name="--retry-delay", help="Seconds from a failed attempt to the next (1)."),
    ] = None
    factor: Annotated[
        float | None,
        Parameter(name="--retry-factor", help="How much longer every further delay is (2)."),
    ] = None
    longest_delay: Annotated[
        float | None,
        Parameter(name="--longest-retry-delay", help="Seconds that no delay exceeds (30)."),
    ] = None
    jitter: Annotated[
        float | None,
        Parameter(
            name="--retry-jitter", help="The part of a delay that chance may take off (0.2)."
        ),
    ] = None

    def build_overrides(self) -> RetryOverrides:
        """For SubmitOptions."""
        from prefect_bt.attempts.retry_overrides import RetryOverrides

        return RetryOverrides(**asdict(self))


NO_RETRY_OPTIONS = RetryOptions()
