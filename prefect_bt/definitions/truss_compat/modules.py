"""Provide modules that replace truss while a config file is imported.

    truss_train               the classes, `push`, and the four below as attributes
    truss_train.definitions   every class, `InteractiveSession` and its enums too
    truss_train.public_api    push
    truss_train.loader        import_target, import_training_project, import_deploy_...
    truss_train.deployment    create_training_job
    truss                     `base` and `truss_config` as attributes, login
    truss.base                truss_config
    truss.base.truss_config   AcceleratorSpec, Accelerator, DockerAuthType, the weights classes
    truss.remote.remote_factory   RemoteFactory

New modules are created for each config file, so that no config file can change them for the next
one. Programs that are not config files use prefect_bt.compat (docs/truss.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NoReturn

from prefect_bt.definitions import (
    checkpoints,
    compute,
    deploy,
    image,
    job,
    runtime,
    session,
    variables,
    weights,
    workspace,
)
from prefect_bt.definitions.truss_compat import functions

TRUSS_PACKAGES: Final = ("truss", "truss_train")

_TOP_LEVEL: Final[tuple[Any, ...]] = (
    image.AWSAssumeRoleDockerAuth,
    image.AWSIAMDockerAuth,
    image.AWSOIDCDockerAuth,
    image.DockerAuth,
    image.GCPOIDCDockerAuth,
    image.GCPServiceAccountJSONDockerAuth,
    image.Image,
    image.RegistrySecretDockerAuth,
    checkpoints.BasetenCheckpoint,
    checkpoints.CheckpointingConfig,
    checkpoints.LoadCheckpointConfig,
    checkpoints.LoopsCheckpoint,
    compute.AvailabilityModel,
    compute.Compute,
    deploy.CheckpointList,
    deploy.DeployCheckpointsConfig,
    deploy.DeployCheckpointsRuntime,
    deploy.FullCheckpoint,
    deploy.LoRACheckpoint,
    deploy.LoRADetails,
    deploy.ModelWeightsFormat,
    job.TrainingJob,
    job.TrainingProject,
    runtime.CacheConfig,
    runtime.Runtime,
    variables.SecretReference,
    weights.WeightsSource,
    workspace.Workspace,
)

_DEFINITIONS_ONLY: Final[tuple[Any, ...]] = (
    deploy.Checkpoint,
    deploy.WhisperCheckpoint,
    session.InteractiveSession,
    session.InteractiveSessionAuthProvider,
    session.InteractiveSessionProvider,
    session.InteractiveSessionTrigger,
)

_TRUSS_CONFIG: Final[tuple[Any, ...]] = (
    compute.Accelerator,
    compute.AcceleratorSpec,
    deploy.TrainingArtifactReference,
    image.DockerAuthType,
    weights.WeightsAuth,
    weights.WeightsAuthMethod,
    weights.WeightsSource,
)


_LOADER: Final[tuple[Any, ...]] = (
    functions.import_deploy_checkpoints_config,
    functions.import_target,
    functions.import_training_project,
)

_DEPLOYMENT: Final[tuple[Any, ...]] = (
    functions.create_training_job,
    functions._upsert_project_and_create_job,  # pyright: ignore[reportPrivateUsage]
    functions.prepare_push,
)

_CONSTANTS: Final[dict[str, object]] = {
    "DEFAULT_LORA_RANK": deploy.DEFAULT_LORA_RANK,
    "DEFAULT_INTERACTIVE_SESSION_TIMEOUT_MINUTES": session.DEFAULT_TIMEOUT_MINUTES,
}

_HOSTED_NAMES: Final[dict[str, frozenset[str]]] = {
    "truss": frozenset({"load", "push", "whoami"}),
    "truss_train.deployment": frozenset({"PreparedTrainingJob", "S3Artifact"}),
    "truss.base.truss_config": frozenset(
        {"BaseImage", "Build", "ModelServer", "Resources", "Runtime", "TrussConfig", "Weights"}
    ),
}
"""Names of the published package that are refused with a sentence of their own."""


@contextmanager
def install_stand_ins() -> Generator[None]:
    """Within it `sys.modules` has our modules and no others of truss; afterwards it is as before.

    Not for concurrent use: the caller holds a lock. Other threads that import truss meanwhile get
    our modules.
    """
    before = _truss_modules(sys.modules)
    _replace_modules(before, make_stand_ins())
    try:
        yield
    finally:
        _replace_modules(_truss_modules(sys.modules), before)


def _truss_modules(modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    return {k: v for k, v in list(modules.items()) if k.partition(".")[0] in TRUSS_PACKAGES}


def _replace_modules(old: Mapping[str, ModuleType], new: Mapping[str, ModuleType]) -> None:
    for name in old:
        del sys.modules[name]
    sys.modules.update(new)


def make_stand_ins() -> dict[str, ModuleType]:
    """Return new stand-ins by their names, each with its submodules as attributes."""
    config = _make_module(
        "truss.base.truss_config", _TRUSS_CONFIG, CheckpointList=deploy.ArtifactList
    )
    base = _make_module("truss.base", (), truss_config=config)
    factory = _make_module("truss.remote.remote_factory", (functions.RemoteFactory,))
    remote = _make_module("truss.remote", (), remote_factory=factory)
    every = (*_TOP_LEVEL, *_DEFINITIONS_ONLY)
    below = {
        "definitions": _make_module(
            "truss_train.definitions", every, truss_config=config, **_CONSTANTS
        ),
        "public_api": _make_module("truss_train.public_api", (functions.push,)),
        "loader": _make_module("truss_train.loader", _LOADER),
        "deployment": _make_module(
            "truss_train.deployment",
            _DEPLOYMENT,
            MAX_ARCHIVE_SIZE_BYTES=functions.MAX_ARCHIVE_SIZE_BYTES,
        ),
    }
    truss = _make_module("truss", (functions.login,), base=base, truss_config=config, remote=remote)
    train = _make_module("truss_train", (*_TOP_LEVEL, functions.push), **below)
    made = [truss, base, config, remote, factory, train, *below.values()]
    return {module.__name__: module for module in made}


def _make_module(name: str, members: tuple[Any, ...], **more: Any) -> ModuleType:
    module = ModuleType(name, f"prefect_bt's stand-in for {name}")
    named = {member.__name__: member for member in members}
    public = [name for name in (*named, *more) if not name.startswith("_")]
    module.__dict__.update(named, **more, __all__=public, __prefect_bt__=True)
    if hosted := _HOSTED_NAMES.get(name):
        module.__dict__["__getattr__"] = _make_getattr(name, hosted)
    package = name in {*TRUSS_PACKAGES, "truss.base", "truss.remote"}
    module.__spec__ = ModuleSpec(name, None, is_package=package)
    if package:
        # A package without a folder: a submodule that we do not have is simply not found.
        module.__path__ = []
    return module


def _make_getattr(module: str, names: frozenset[str]) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__`; names it does not refuse are unknown, as in any module."""

    def refuse(name: str) -> NoReturn:
        if name in names:
            raise functions.hosted_service_error(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse
