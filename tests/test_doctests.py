"""The examples in docstrings show what the functions return."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.architecture.sources import PACKAGE, read_sources

WITH_EXAMPLES = sorted(module for module, source in read_sources().items() if ">>> " in source)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples(module: str) -> None:
    done = doctest.testmod(import_module(f"{PACKAGE}.{module}"))
    assert done.attempted and not done.failed
