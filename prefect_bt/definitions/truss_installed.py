"""Programs written for truss_train, for as long as the process lives or until `uninstall`.

Not for config files: while one is loaded, truss_names makes all of truss ours in any case.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

from prefect_bt.definitions.truss_names import PACKAGES, make_modules

_SUBMITTING: Final = {
    "truss_train.public_api": ("push",),
    "truss_train.deployment": (
        "create_training_job",
        "_upsert_project_and_create_job",
        "prepare_push",
    ),
}
"""What would submit to Baseten, and is replaced in an installed truss."""

_put_in: dict[str, ModuleType] = {}
_rebound: list[tuple[dict[str, Any], str, object]] = []


def install() -> None:
    """Bring `truss_train` to us; idempotent. See prefect_bt.compat."""
    if _put_in or _rebound or _is_ours(sys.modules.get("truss_train")):
        return
    if importlib.util.find_spec("truss_train") is None:
        _put_in.update(make_modules())
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]  # a truss without truss_train
        sys.modules.update(_put_in)
        return
    ours = make_modules()
    for module, names in _SUBMITTING.items():
        theirs = importlib.import_module(module)
        for name in names:
            if hasattr(theirs, name):
                _rebind(getattr(theirs, name), getattr(ours[module], name))


def uninstall() -> None:
    """Undo `install`: stand-ins leave `sys.modules`, names are bound as before."""
    for name, module in _put_in.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    for namespace, name, theirs in _rebound:
        namespace[name] = theirs
    _put_in.clear()
    _rebound.clear()


def _is_ours(module: ModuleType | None) -> bool:
    return module is not None and getattr(module, "__prefect_bt__", False) is True


def _rebind(theirs: object, ours: object) -> None:
    """Put `ours` wherever a loaded module has a name for `theirs`, as `from ... import` leaves."""
    for module in list(sys.modules.values()):
        namespace: dict[str, Any] = getattr(module, "__dict__", {})
        for name in [name for name, value in namespace.items() if value is theirs]:
            _rebound.append((namespace, name, theirs))
            namespace[name] = ours
