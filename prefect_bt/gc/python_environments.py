"""Scanner of Python environments whose base interpreter was removed from this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import measure_folder
from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.nodes.handle import delete_tree
from prefect_bt.host.python.environment import RECORD_NAME, EnvironmentRecord
from prefect_bt.host.state_folder import environments_folder


def scan_python_environments(state_dir: Path) -> Iterator[Orphan]:
    """Yield the environments that no job can be given any more."""
    for path in find_paths(environments_folder(state_dir), "*/python*"):
        if missing := _find_missing_python(path):
            size, modified_at = measure_folder(path)
            yield Orphan(
                OrphanKind.PYTHON_ENVIRONMENT,
                str(path),
                f"its interpreter {missing} is gone",
                partial(_delete, path),
                bytes=size,
                since=modified_at,
            )


def _find_missing_python(path: Path) -> str:
    """Return the interpreter of the environment if it is gone, else ""."""
    record = read_record(EnvironmentRecord, path / RECORD_NAME)
    if record is None or path.is_symlink():
        return ""
    interpreters = (record.python, str(path / "bin" / "python"))
    return next((python for python in interpreters if not os.access(python, os.X_OK)), "")


def _delete(path: Path) -> None:
    if _find_missing_python(path):
        delete_tree(path, OSError)
