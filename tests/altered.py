"""Modules of the standard library as one module of ours sees them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


def altered(module: ModuleType, **replaced: Any) -> SimpleNamespace:
    """Copy `module` with some functions replaced, for `monkeypatch.setattr(ours, "os", ...)`.

    `setattr(ours.os, ...)` would replace them for all threads of the process, among them those that
    earlier tests have left.
    """
    return SimpleNamespace(**{**vars(module), **replaced})
