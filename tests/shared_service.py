"""A server that all processes of a test run share: the first begins it, the last ends it.

`shared_service("tests.prefect_server:serve", folder)` opens that context manager, which takes the
folder and yields what JSON can hold, in a process of its own (this module as a program). That
process ends when the last user is done, and when the test run is gone, however it went.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE = 600.0
"""Seconds, for a beginning and for an end; a busy machine takes long, and a failure is told."""
ROOT = Path(__file__).parents[1]


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole run, the same for every worker of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def shared_service(opener: str, folder: Path) -> Generator[Any]:
    """What `opener` (module:function) yields, in `folder`, for as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        users = _users(folder)
        if users == 0:
            _begin(opener, folder)
        (folder / "users").write_text(str(users + 1))
        note = json.loads((folder / "note.json").read_text())
    try:
        yield note["yielded"]
    finally:
        with _locked(folder):
            left = _users(folder) - 1
            (folder / "users").write_text(str(left))
            if left == 0:
                _end(note["pid"])


def _users(folder: Path) -> int:
    with suppress(FileNotFoundError):
        return int((folder / "users").read_text())
    return 0


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _begin(opener: str, folder: Path) -> None:
    note = folder / "note.json"
    note.unlink(missing_ok=True)
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    with (folder / "host.log").open("ab") as log:
        host = subprocess.Popen(
            [sys.executable, "-m", "tests.shared_service", opener, str(folder), str(run)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE
    while not note.exists() and host.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if not note.exists():
        host.kill()
        log_text = (folder / "host.log").read_text(errors="replace")
        raise RuntimeError(f"{opener} did not begin:\n{log_text[-4000:]}")


def _end(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        host = psutil.Process(pid)
        host.terminate()
        deadline = time.monotonic() + PATIENCE
        while host.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)


def _host(opener: str, folder: Path, run: int) -> None:
    module, _, name = opener.partition(":")
    staged, note = folder / "note.new", folder / "note.json"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with getattr(importlib.import_module(module), name)(folder) as yielded:
        staged.write_text(json.dumps({"pid": os.getpid(), "yielded": yielded}))
        staged.replace(note)
        while psutil.pid_exists(run):
            time.sleep(1)


if __name__ == "__main__":
    try:
        _host(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
