"""Provide modules that replace truss while a config file is imported, or until `uninstall`.

`_MODULES` has the modules and their names; `functions` implements those that are not classes.
New modules are created for each config file, so that no config file can change them for the next
one. Programs that are not config files call `install` of prefect_bt.compat (docs/truss.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, NoReturn

from prefect_bt.definitions import deploy, interactive_session
from prefect_bt.definitions.truss_compat import functions

TRUSS_PACKAGES: Final = ("truss", "truss_train")

_TOP_LEVEL: Final = (
    "AWSAssumeRoleDockerAuth AWSIAMDockerAuth AWSOIDCDockerAuth AvailabilityModel BasetenCheckpoint"
    " CacheConfig CheckpointList CheckpointingConfig Compute DeployCheckpointsConfig"
    " DeployCheckpointsRuntime DockerAuth FullCheckpoint GCPOIDCDockerAuth"
    " GCPServiceAccountJSONDockerAuth Image LoRACheckpoint LoRADetails LoadCheckpointConfig"
    " LoopsCheckpoint ModelWeightsFormat RegistrySecretDockerAuth Runtime SecretReference"
    " TrainingJob TrainingProject WeightsSource Workspace"
)
_MODULES: Final[dict[str, str]] = {
    "truss": "login",
    "truss.base": "",
    "truss.base.truss_config": "Accelerator AcceleratorSpec CheckpointList DockerAuthType"
    " TrainingArtifactReference WeightsAuth WeightsAuthMethod WeightsSource",
    "truss.remote": "",
    "truss.remote.remote_factory": "RemoteFactory",
    "truss_train": f"{_TOP_LEVEL} push",
    "truss_train.definitions": f"{_TOP_LEVEL} Checkpoint InteractiveSession WhisperCheckpoint"
    " InteractiveSessionAuthProvider InteractiveSessionProvider InteractiveSessionTrigger"
    " DEFAULT_INTERACTIVE_SESSION_TIMEOUT_MINUTES DEFAULT_LORA_RANK",
    "truss_train.public_api": "push",
    "truss_train.loader": "import_deploy_checkpoints_config import_target import_training_project",
    "truss_train.deployment": "MAX_ARCHIVE_SIZE_BYTES _upsert_project_and_create_job"
    " create_training_job prepare_push",
}
"""Module -> its names. The objects are those of `prefect_bt.definitions` and of `functions`."""
_HOSTED_NAMES: Final = {
    "truss": "load push whoami",
    "truss_train.deployment": "PreparedTrainingJob S3Artifact",
    "truss.base.truss_config": "BaseImage Build ModelServer Resources Runtime TrussConfig Weights",
}
"""Names of the published package that are refused with a sentence of their own."""

_REPLACED_FUNCTIONS: Final = {
    "truss_train.public_api": ("push",),
    "truss_train.deployment": (
        "create_training_job",
        "_upsert_project_and_create_job",
        "prepare_push",
    ),
}
"""Functions that submit to Baseten, and are replaced in an installed truss."""

_installed_modules: dict[str, ModuleType] = {}
_replaced_names: list[tuple[dict[str, Any], str, object]] = []


@contextmanager
def install_stand_ins() -> Generator[None]:
    """Replace all modules of truss in `sys.modules` with ours, and restore them on exit.

    Not for concurrent use: the caller holds a lock. Other threads that import truss meanwhile get
    our modules.
    """
    before = replace_truss_modules(make_stand_ins())
    try:
        yield
    finally:
        replace_truss_modules(before)


def replace_truss_modules(new: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """Replace all modules of truss in `sys.modules` with `new`, and return them."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] in TRUSS_PACKAGES]
    old = {name: sys.modules.pop(name) for name in names}
    sys.modules.update(new)
    return old


def make_stand_ins() -> dict[str, ModuleType]:
    """Return new stand-ins by their names, each with its submodules as attributes."""
    made = {name: _make_module(name) for name in _MODULES}
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            vars(made[parent])[child] = module
    for name in ("truss", "truss_train.definitions"):
        vars(made[name])["truss_config"] = made["truss.base.truss_config"]
    for module in made.values():
        public = [name for name in vars(module) if not name.startswith("_")]
        vars(module).update(__all__=public, __prefect_bt__=True)
    return made


def _make_module(name: str) -> ModuleType:
    module = ModuleType(name, f"prefect_bt's stand-in for {name}")
    # Imported on use: it imports this module.
    known = {**vars(import_module("prefect_bt.definitions")), **vars(functions)}
    known["DEFAULT_INTERACTIVE_SESSION_TIMEOUT_MINUTES"] = (
        interactive_session.DEFAULT_TIMEOUT_MINUTES
    )
    known["DEFAULT_LORA_RANK"] = deploy.DEFAULT_LORA_RANK
    if name == "truss.base.truss_config":
        known["CheckpointList"] = deploy.ArtifactList
    vars(module).update({each: known[each] for each in _MODULES[name].split()})
    if hosted := _HOSTED_NAMES.get(name):
        vars(module)["__getattr__"] = _make_getattr(name, hosted.split())
    package = any(other.startswith(f"{name}.") for other in _MODULES)
    module.__spec__ = ModuleSpec(name, None, is_package=package)
    if package:
        # A package without a folder: a submodule that we do not have is simply not found.
        module.__path__ = []
    return module


def _make_getattr(module: str, names: Collection[str]) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__`; names it does not refuse are unknown, as in any module."""

    def refuse(name: str) -> NoReturn:
        if name in names:
            raise functions.hosted_service_error(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse


def install() -> None:
    """Let programs for `truss_train` use prefect_bt; idempotent. See prefect_bt.compat."""
    loading = getattr(sys.modules.get("truss_train"), "__prefect_bt__", False)
    if _installed_modules or _replaced_names or loading:
        return
    if find_spec("truss_train") is None:
        _installed_modules.update(make_stand_ins())
        replace_truss_modules(_installed_modules)  # there may be a truss without truss_train
        return
    ours = make_stand_ins()
    for module, names in _REPLACED_FUNCTIONS.items():
        theirs = import_module(module)
        for name in names:
            if hasattr(theirs, name):
                _replace_everywhere(getattr(theirs, name), getattr(ours[module], name))


def uninstall() -> None:
    """Undo `install`: stand-ins leave `sys.modules`, names are bound as before."""
    for name, module in _installed_modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    for namespace, name, theirs in _replaced_names:
        namespace[name] = theirs
    _installed_modules.clear()
    _replaced_names.clear()


def _replace_everywhere(theirs: object, ours: object) -> None:
    """Replace `theirs` with `ours` in every loaded module, also after `from ... import`."""
    for module in list(sys.modules.values()):
        namespace: dict[str, Any] = getattr(module, "__dict__", {})
        for name in [name for name, value in namespace.items() if value is theirs]:
            _replaced_names.append((namespace, name, theirs))
            namespace[name] = ours
