"""Install the stand-ins of truss for a program, until the process ends or `uninstall`.

Config files do not need it: `modules.install_stand_ins` replaces truss while one is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

from prefect_bt.definitions.truss_compat.modules import make_stand_ins, replace_truss_modules

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


def install() -> None:
    """Let programs for `truss_train` use prefect_bt; idempotent. See prefect_bt.compat."""
    loading = getattr(sys.modules.get("truss_train"), "__prefect_bt__", False)
    if _installed_modules or _replaced_names or loading:
        return
    if importlib.util.find_spec("truss_train") is None:
        _installed_modules.update(make_stand_ins())
        replace_truss_modules(_installed_modules)  # there may be a truss without truss_train
        return
    ours = make_stand_ins()
    for module, names in _REPLACED_FUNCTIONS.items():
        theirs = importlib.import_module(module)
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
