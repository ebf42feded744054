"""The Docker client, whose package has no types."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

Engine: TypeAlias = Any
"""A `Engine`."""
errors: Any = import_module("docker.errors")
_types: Any = import_module("docker.types")


def bind(source: str, target: str, *, read_only: bool) -> Any:
    """Return the mount of a folder or file of this machine."""
    return _types.Mount(target, source, type="bind", read_only=read_only)
