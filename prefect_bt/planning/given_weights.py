"""Plans of weights sources that are mirrored outside of a job, each validated as `push` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect_bt.definitions import TrainingJob, load_training_project
from prefect_bt.errors import PlanError, PrefectBtError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.planning.planner import plan_weights, plan_weights_sources
from prefect_bt.planning.weights_validation import validate_weights


def plan_config_weights(config: Path) -> Sequence[WeightsPlan]:
    """Return plans of the weights of a config file's job.

    Raise PrefectBtError if the job has no weights, and PlanError if one of them is not valid.
    """
    job = load_training_project(config).job
    if not job.weights:
        raise PrefectBtError(
            f"The job of {str(config)!r} has no weights.",
            next_step="Add WeightsSource(...) to its `weights`, or give --source.",
        )
    return plan_job_weights(job)


def plan_job_weights(job: TrainingJob) -> Sequence[WeightsPlan]:
    """Return plans of the weights of a job. Raise PlanError if one of them is not valid."""
    if problems := validate_weights(job):
        raise PlanError(problems)
    return plan_weights(job)


def plan_given_sources(
    sources: Sequence[str],
    *,
    allow_patterns: Sequence[str] | None = None,
    ignore_patterns: Sequence[str] | None = None,
    auth_secret_name: str | None = None,
) -> Sequence[WeightsPlan]:
    """Return plans of the sources, with the same patterns and secret. Raise DefinitionError."""
    common = {
        "allow_patterns": list(allow_patterns or ()) or None,
        "ignore_patterns": list(ignore_patterns or ()) or None,
        "auth_secret_name": auth_secret_name or None,
    }
    return plan_weights_sources([{"source": source, **common} for source in sources])
