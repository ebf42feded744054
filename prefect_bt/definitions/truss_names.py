"""Modules that stand in for truss while a config file is imported (§2.11, decision 12).

    truss_train               the classes, `push`, and the two below as attributes
    truss_train.definitions   every class, `InteractiveSession` and its enums too
    truss_train.public_api    push
    truss                     `base` and `truss_config` as attributes
    truss.base                truss_config
    truss.base.truss_config   AcceleratorSpec, Accelerator, DockerAuthType, the weights classes

They are made afresh for each config file, so none can spoil them for the next.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

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

PACKAGES: Final = ("truss", "truss_train")

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


def push(config: Any, **options: Any) -> Any:
    """`prefect_bt.push`, found when it is called: this room knows nothing of launching."""
    return importlib.import_module("prefect_bt").push(config, **options)


@contextmanager
def truss_is_ours() -> Generator[None]:
    """Within it `sys.modules` has our modules and no others of truss; afterwards it is as before.

    Not for concurrent use: the caller holds a lock. Other threads that import truss meanwhile get
    our modules.
    """
    before = _of_truss(sys.modules)
    _replace(before, _modules())
    try:
        yield
    finally:
        _replace(_of_truss(sys.modules), before)


def _of_truss(modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    return {k: v for k, v in list(modules.items()) if k.partition(".")[0] in PACKAGES}


def _replace(old: Mapping[str, ModuleType], new: Mapping[str, ModuleType]) -> None:
    for name in old:
        del sys.modules[name]
    sys.modules.update(new)


def _modules() -> dict[str, ModuleType]:
    truss_config = _module("truss.base.truss_config", _TRUSS_CONFIG)
    truss_config.__dict__["CheckpointList"] = deploy.ArtifactList
    base = _module("truss.base", (), truss_config=truss_config)
    definitions = _module(
        "truss_train.definitions", (*_TOP_LEVEL, *_DEFINITIONS_ONLY), truss_config=truss_config
    )
    public_api = _module("truss_train.public_api", (push,))
    made = [
        truss_config,
        base,
        definitions,
        public_api,
        _module("truss", (), base=base, truss_config=truss_config),
        _module("truss_train", (*_TOP_LEVEL, push), definitions=definitions, public_api=public_api),
    ]
    return {module.__name__: module for module in made}


def _module(name: str, members: tuple[Any, ...], **more: Any) -> ModuleType:
    module = ModuleType(name, f"prefect_bt's stand-in for {name}")
    named = {member.__name__: member for member in members}
    module.__dict__.update(named, **more, __all__=[*named, *more])
    package = name in {*PACKAGES, "truss.base"}
    module.__spec__ = ModuleSpec(name, None, is_package=package)
    if package:
        # A package without a folder: a submodule that we do not have is simply not found.
        module.__path__ = []
    return module
