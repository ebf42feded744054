"""Weights sources of a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from prefect_bt.credentials.secrets import EnvironmentSecrets, resolve_secrets
from prefect_bt.errors import SecretError, UsageError
from prefect_bt.jobs.starting.launcher import default_secret_sources
from prefect_bt.planning.given_weights import plan_config_weights, plan_given_sources
from prefect_bt.planning.plan import WeightsPlan


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
        raise UsageError("Give either a config file or --source hf://owner/repo.")
    if config is None:
        plans = plan_given_sources(
            given.source,
            allow_patterns=given.allow,
            ignore_patterns=given.ignore,
            auth_secret_name=given.auth_secret_name,
        )
    elif given == NO_SOURCES:
        plans = plan_config_weights(config)
    else:
        raise UsageError(
            "--allow, --ignore and --auth-secret-name belong to --source.",
            next_step="Set the patterns and the secret of each source in the config file.",
        )
    return list({plan.key: plan for plan in plans}.values())


def resolve_secret(plan: WeightsPlan) -> str | None:
    """Return the value of the plan's secret, from the environment or else from Prefect."""
    if not plan.secret:
        return None
    try:
        return resolve_secrets([plan.secret], [EnvironmentSecrets()])[plan.secret]
    except SecretError:  # asking Prefect imports it, and starts a server where none runs
        return resolve_secrets([plan.secret], default_secret_sources())[plan.secret]
