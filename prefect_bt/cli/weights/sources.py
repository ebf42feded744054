"""Weights sources of a command, and the node cache that it opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from prefect_bt.credentials.secrets import EnvironmentSecrets, resolve_secrets
from prefect_bt.definitions import load_training_project
from prefect_bt.errors import PlanError, PrefectBtError, SecretError
from prefect_bt.jobs.start import default_secret_sources
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.planning.planner import plan_weights, plan_weights_sources
from prefect_bt.planning.validation import validate_weights, validate_weights_source
from prefect_bt.settings import Settings
from prefect_bt.weights.cache.node_cache import NodeCache


@Parameter(name="*")
@dataclass(frozen=True)
class SourceOptions:
    """Sources without a config file. Patterns and secret apply to each of them."""

    source: tuple[str, ...] = ()
    """Source, such as hf://owner/repo@main. Repeatable."""
    allow: tuple[str, ...] = ()
    """Pattern of files to mirror. Repeatable."""
    ignore: tuple[str, ...] = ()
    """Pattern of files to leave out. Repeatable."""
    auth_secret_name: str | None = None
    """Secret with the credentials of the source."""


NO_SOURCES = SourceOptions()


def resolve_plans(config: Path | None, given: SourceOptions) -> list[WeightsPlan]:
    """Return the sources of the config file or of the options, each once.

    Raise PrefectBtError when there are none, and PlanError when `push` would refuse one.
    """
    if (config is None) == (not given.source):
        raise PrefectBtError(
            "Name either a config file or sources.",
            next_step="Give config.py, or --source hf://owner/repo.",
        )
    if config is None:
        plans = _plan_options(given)
    elif given == NO_SOURCES:
        plans = _plan_config(config)
    else:
        raise PrefectBtError(
            "--allow, --ignore and --auth-secret-name belong to --source.",
            next_step="Set the patterns and the secret of each source in the config file.",
        )
    return list({plan.key: plan for plan in plans}.values())


def _plan_config(config: Path) -> Sequence[WeightsPlan]:
    job = load_training_project(config).job
    if not job.weights:
        raise PrefectBtError(
            f"The job of {str(config)!r} has no weights.",
            next_step="Add WeightsSource(...) to its `weights`, or give --source.",
        )
    if problems := [problem for found in validate_weights(job) for problem in found]:
        raise PlanError(problems)
    return plan_weights(job)


def _plan_options(given: SourceOptions) -> Sequence[WeightsPlan]:
    fields = {
        "allow_patterns": list(given.allow),
        "ignore_patterns": list(given.ignore),
        "auth_secret_name": given.auth_secret_name,
    }
    common: dict[str, object] = {name: value for name, value in fields.items() if value}
    documents = [{"source": source, **common} for source in given.source]
    for document in documents:
        validate_weights_source(document)
    return plan_weights_sources(documents)


def resolve_secret(plan: WeightsPlan) -> str | None:
    """Return the value of the plan's secret, from the environment or else from Prefect."""
    if not plan.secret:
        return None
    try:
        return resolve_secrets([plan.secret], [EnvironmentSecrets()])[plan.secret]
    except SecretError:  # asking Prefect imports it, and starts a server where none runs
        return resolve_secrets([plan.secret], default_secret_sources())[plan.secret]


def open_cache(settings: Settings) -> NodeCache:
    """Open the weights cache of this machine."""
    return NodeCache(settings.weights_dir, settings.weights_bytes)
