"""Where nodes run. A literal table from a substrate's name to its module, imported on use.

Each module has one function `create_substrate(**options) -> Substrate`. Begin with `protocol`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, cast

from prefect_bt.errors import SubstrateError
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.substrates.protocol import NodeHandle, Substrate

SUBSTRATES: Final[Mapping[str, str]] = {
    "local": "prefect_bt.substrates.local.substrate",
    "docker": "prefect_bt.substrates.docker.substrate",
    "kubernetes": "prefect_bt.substrates.kubernetes.substrate",
}

SHELLS: Final[Mapping[str, str]] = {
    "local": "prefect_bt.substrates.local.shell",
    "docker": "prefect_bt.substrates.docker.shell",
    "kubernetes": "prefect_bt.substrates.kubernetes.shell",
}
"""Each module has one function `run_shell(handle, request) -> int` for handles of its substrate."""

CLUSTERS: Final = frozenset({"kubernetes"})
"""Substrates whose nodes any machine can remove. Nodes of the others have files on their machine,
by which that machine finds them."""


def open_substrate(name: str, **options: Any) -> Substrate:
    """The substrate of that name; `options` are those of its `create_substrate`.

    SubstrateError for an unknown name, or options that it does not take.
    """
    module = SUBSTRATES.get(name)
    if module is None:
        known = ", ".join(sorted(SUBSTRATES))
        raise SubstrateError(
            f"There is no substrate {name!r}.",
            substrate=name,
            next_step=f"Use one of: {known}.",
        )
    create = importlib.import_module(module).create_substrate
    return cast("Substrate", create(**options))


def run_shell(substrate: str, node: NodeHandle, request: ShellRequest) -> int:
    """Run a command beside the node's own, with this process's terminal; return its exit code.

    It has the files and variables of the node's commands, and ends with them. SubstrateError.
    """
    return int(importlib.import_module(SHELLS[substrate]).run_shell(node, request))
