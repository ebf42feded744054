"""Implement the functions of truss_train that programs call.

Functions that need the hosted service raise HostedServiceError with one sentence.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

from prefect_bt.definitions.deploy import DeployCheckpointsConfig
from prefect_bt.definitions.job import TrainingProject
from prefect_bt.definitions.overrides import Overrides, apply_overrides
from prefect_bt.definitions.truss_compat.conversion import to_training_project
from prefect_bt.errors import PrefectBtError

T = TypeVar("T")

MAX_ARCHIVE_SIZE_BYTES: Final = 5 * 1024**3


class HostedServiceError(PrefectBtError, NotImplementedError, ImportError):
    """A name of truss that needs Baseten's service, which prefect_bt does not use."""


def push(config: Any, **options: Any) -> Any:
    """Call `prefect_bt.push`, imported on use: definitions must not import the start of jobs."""
    return importlib.import_module("prefect_bt").push(config, **options)


# -- truss_train.loader ---------------------------------------------------------------------


@contextmanager
def import_target(module_path: Path | str, target_type: type[T]) -> Generator[T]:
    """Yield the only `target_type` of a config file. Raises as `load_training_project`."""
    # Imported on use: the loader imports this module.
    loader = importlib.import_module("prefect_bt.definitions.config_file.loader")
    yield cast("T", loader.load_target(Path(module_path), target_type))


import_training_project = partial(import_target, target_type=TrainingProject)
import_deploy_checkpoints_config = partial(import_target, target_type=DeployCheckpointsConfig)


# -- truss_train.deployment -----------------------------------------------------------------


def create_training_job(  # noqa: PLR0913, PLR0917 (truss names them)
    remote_provider: object,
    config: Path | str,
    training_project: object,
    job_name_from_cli: str | None = None,
    team_name: str | None = None,
    team_id: str | None = None,
    interactive_trigger: str | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Submit `training_project` with the folder of `config`, as truss does from its command line.

    `remote_provider` is not used. The other options are those of Overrides: accelerator,
    cpu_count, memory, node_count, entrypoint, priority, spot, interactive_timeout_minutes.
    """
    changes = Overrides(
        job_name=job_name_from_cli or None,
        team=team_name or None,
        interactive=interactive_trigger.lower() if interactive_trigger else None,
        **overrides,
    )
    project, messages = apply_overrides(to_training_project(training_project), changes)
    for message in messages:
        warnings.warn(message, stacklevel=2)
    source_dir = Path(config).absolute().parent
    document = _upsert_project_and_create_job(remote_provider, project, source_dir, team_id=team_id)
    return {**document, "job_object": project.job}


def _upsert_project_and_create_job(
    remote_provider: object,
    training_project: object,
    source_dir: Path | str,
    team_id: str | None = None,
) -> dict[str, Any]:
    _ = remote_provider
    return push(training_project, source_dir=source_dir, team_id=team_id)


def prepare_push(*arguments: object, **options: object) -> NoReturn:
    """Raise HostedServiceError: it uploads a workspace to Baseten's bucket."""
    _ = arguments, options
    raise hosted_service_error("truss_train.deployment.prepare_push")


# -- truss ----------------------------------------------------------------------------------


def login(api_key: str) -> None:
    """Accept an API key and ignore it: prefect_bt has no accounts."""
    _ = api_key


class Remote:
    """Stand in for a remote: `create_training_job` accepts it and does not use it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise hosted_service_error(f"a remote's {name!r}")


class RemoteFactory:
    """Stand in for the remotes of `~/.trussrc`; there is one, the store of the settings."""

    @staticmethod
    def create(remote: str = "baseten") -> Remote:
        return Remote(remote)

    @staticmethod
    def get_available_config_names() -> list[str]:
        return ["baseten"]


def hosted_service_error(name: str) -> HostedServiceError:
    """Return the error for using `name`."""
    return HostedServiceError(
        f"prefect_bt stands in for truss and does not have {name}: it is for Baseten's service "
        "or for model serving.",
        next_step="Submit with truss_train.push(project, source_dir=...); for anything else, "
        "run the program with truss installed and without prefect_bt.compat.",
    )
