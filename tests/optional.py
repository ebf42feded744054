"""Skips of what needs packages that a plain installation does not have."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*modules: str) -> pytest.MarkDecorator:
    """Return a mark that skips where one of the modules is not installed.

    The modules are looked for, not imported: every worker of pytest collects every test, and
    PyTorch with transformers takes ten seconds to import.
    """
    absent = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}: make demo-deps")
