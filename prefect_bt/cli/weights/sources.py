"""Which weights sources a command is about, and what it opens to look at them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from prefect_bt.errors import PlanError, PrefectBtError, SecretError

if TYPE_CHECKING:
    from prefect_bt.object_store.protocols import Store
    from prefect_bt.planning.plan import WeightsPlan
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache.node_cache import NodeCache

ConfigPath = Annotated[
    Path | None, Parameter(help="Python file with one TrainingProject: all of its sources.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class SourceOptions:
    """Sources without a config file. The patterns and the secret are those of all of them."""

    source: Annotated[
        tuple[str, ...], Parameter(help="A source instead, such as hf://owner/repo@main.")
    ] = ()
    allow: Annotated[
        tuple[str, ...], Parameter(help="As allow_patterns; may be given several times.")
    ] = ()
    ignore: Annotated[
        tuple[str, ...], Parameter(help="As ignore_patterns; may be given several times.")
    ] = ()
    auth_secret_name: Annotated[
        str | None, Parameter(help="The secret that the source is read with.")
    ] = None


NO_SOURCES = SourceOptions()


def resolve_plans(config: Path | None, given: SourceOptions) -> list[WeightsPlan]:
    """Return the sources of the config file or of the options.

    Raise PrefectBtError when there are none, and PlanError when `push` would refuse one.
    """
    if (config is None) == (not given.source):
        raise PrefectBtError(
            "Name either a config file or sources.",
            next_step="Give config.py, or --source hf://owner/repo.",
        )
    if config is not None:
        if given != NO_SOURCES:
            raise PrefectBtError(
                "--allow, --ignore and --auth-secret-name belong to --source.",
                next_step="The config file says them for each of its sources.",
            )
        return _plans_from_config(config)
    return _plans_from_options(given)


def _plans_from_config(config: Path) -> list[WeightsPlan]:
    from prefect_bt.definitions import load_training_project
    from prefect_bt.planning.planner import plan_weights
    from prefect_bt.planning.validation import validate_weights

    job = load_training_project(config).job
    if not job.weights:
        raise PrefectBtError(
            f"The job of {str(config)!r} has no weights.",
            next_step="Add WeightsSource(...) to its `weights`, or give --source.",
        )
    problems = [problem for found in validate_weights(job) for problem in found]
    if problems:
        raise PlanError(problems)
    return list(plan_weights(job))


def _plans_from_options(given: SourceOptions) -> list[WeightsPlan]:
    from prefect_bt.planning.planner import plan_weights_sources
    from prefect_bt.planning.validation import validate_weights_source

    documents = [_document(one, given) for one in given.source]
    for document in documents:
        validate_weights_source(document)
    return list(plan_weights_sources(documents))


def _document(source: str, sources: SourceOptions) -> dict[str, object]:
    document: dict[str, object] = {"source": source}
    if sources.allow:
        document["allow_patterns"] = list(sources.allow)
    if sources.ignore:
        document["ignore_patterns"] = list(sources.ignore)
    if sources.auth_secret_name:
        document["auth_secret_name"] = sources.auth_secret_name
    return document


def resolve_secret(plan: WeightsPlan) -> str | None:
    """The value that the plan names, None when it names none. SecretError.

    What this command's environment has is taken first: Prefect is asked only when it must be.
    """
    from prefect_bt.credentials.secrets import EnvironmentSecrets, resolve_secrets

    if not plan.secret:
        return None
    try:
        return resolve_secrets([plan.secret], [EnvironmentSecrets()])[plan.secret]
    except SecretError:
        from prefect_bt.jobs.start import default_secret_sources

        return resolve_secrets([plan.secret], default_secret_sources())[plan.secret]


def open_cache(settings: Settings) -> NodeCache:
    """What this machine keeps of weights."""
    from prefect_bt.weights.cache.node_cache import NodeCache

    return NodeCache(settings.weights_dir, settings.weights_bytes)


def open_weights_store(settings: Settings) -> Store:
    """Where checkpoints lie and where the copies for other machines are kept."""
    from prefect_bt.object_store import open_store

    return open_store(settings.store)
