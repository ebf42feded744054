"""A home for a server of a test's own."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.local_server import server
from prefect_bt.local_server.password import CLIENT_VARIABLE
from tests.e2e.conftest import Machine, served_machine
from tests.prefect_database import copy_database

__all__ = ["served_machine"]  # a fixture


@pytest.fixture
def home(served_machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a state folder and a Prefect home that other users can enter, a common default.

    The home has a database with its tables.
    """
    root = Path(tempfile.mkdtemp(prefix="entered-"))  # in a folder of pytest nobody else can
    root.chmod(0o755)
    for variable, name in (
        ("PREFECT_BT_STATE_DIR", "state"),
        ("PREFECT_BT_STORE", "store"),
        ("PREFECT_HOME", "prefect"),
    ):
        (root / name).mkdir(mode=0o755)
        (root / name).chmod(0o755)
        monkeypatch.setenv(variable, str(root / name))
    for variable, value in copy_database(served_machine.new_database, root / "prefect").items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv(CLIENT_VARIABLE, raising=False)
    monkeypatch.setattr(server, "_SERVER_TIMEOUT", 900.0)
    monkeypatch.setattr(server, "_WORKER_TIMEOUT", 900.0)
    yield root
    shutil.rmtree(root, ignore_errors=True)
