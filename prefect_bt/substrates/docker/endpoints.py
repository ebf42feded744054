"""Record which Docker Engines have run nodes of a state folder, so that gc finds the rest there.

<state dir>/engines/<quoted DOCKER_HOST, or "default">
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.object_keys import quote_name
from prefect_bt.substrates.docker.engine import DEFAULT_DOCKER_HOST, DockerEngine

_DEFAULT: Final = "default"
_CANNOT_RAISE_LIMITS: Final = "may not raise limits\n"


def record_engine(state_dir: Path, host: str, *, raises_limits: bool = True) -> None:
    """Record an Engine before its first use. `host`: a DOCKER_HOST, "" for the default. OSError.

    `raises_limits`: False if the Engine was found not to allow it; finding out costs a container.
    """
    path = _path(state_dir, host)
    ensure_private_folder(path.parent)
    path.touch()
    if not raises_limits:
        path.write_text(_CANNOT_RAISE_LIMITS)


def can_raise_limits(state_dir: Path, host: str) -> bool:
    """Return whether the Engine may set ulimits above its own, as far as is known."""
    try:
        return _path(state_dir, host).read_text() != _CANNOT_RAISE_LIMITS
    except OSError:
        return True


def _path(state_dir: Path, host: str) -> Path:
    return state_dir / "engines" / quote_name(host or _DEFAULT)


def list_used_engines(state_dir: Path) -> list[DockerEngine]:
    """Return the recorded Engines, not connected; none if no node ran in a container.

    An Engine without its socket is removed from the list.
    """
    names = [path.name for path in find_paths(state_dir / "engines", "*")]
    hosts = [unquote(name) for name in names]
    hosts = [
        host for host in hosts if _may_exist(DEFAULT_DOCKER_HOST if host == _DEFAULT else host)
    ]
    others = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    return [
        DockerEngine(others if host == _DEFAULT else {**others, "DOCKER_HOST": host})
        for host in hosts
    ]


def _may_exist(host: str) -> bool:
    return not host.startswith("unix://") or Path(host.removeprefix("unix://")).exists()
