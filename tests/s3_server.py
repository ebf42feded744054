"""One S3 server for all processes of a test run: started by the first, ended with the last.

Every process that uses the server holds a shared lock on the file `users`; the server waits for
that lock alone, gets it when no process is left, however each of them ended, and ends. The kernel
keeps the locks: nothing has to be told or cleaned up. Tests keep apart by their buckets.

It takes parts of any size, which lets tests send large files of a few KB
(tests/object_store/small.py).

    python tests/s3_server.py FOLDER        runs the server of that folder
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

START_SECONDS = 300.0
_joined: dict[str, tuple[str, int]] = {}
"""Name of a server -> its address and the lock that keeps it, for this process."""


def shared_s3(*, guarded: bool = False) -> str:
    """The address of the server of this test run.

    A `guarded` one is this process' own: a test may make it check signatures and policies.
    """
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    name = f"guarded-{os.getpid()}" if guarded else "shared"
    if name not in _joined or not _answers(_joined[name][0]):
        _joined[name] = _join(_folder(name), guarded=guarded)
    return _joined[name][0]


def _folder(name: str) -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir()) / f"prefect-bt-s3-{os.getuid()}-{run}-{name}"


def _join(folder: Path, *, guarded: bool) -> tuple[str, int]:
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        users = os.open(folder / "users", os.O_RDWR | os.O_CREAT)
        fcntl.flock(users, fcntl.LOCK_SH)  # a server that is ending is waited for
        note = folder / "note"
        with contextlib.suppress(OSError, ValueError):
            address = json.loads(note.read_text())["address"]
            if _answers(address):
                return address, users
        note.unlink(missing_ok=True)
        return _start(folder, note, guarded=guarded), users


def _start(folder: Path, note: Path, *, guarded: bool) -> str:
    environment = {
        **os.environ,
        "S3_UPLOAD_PART_MIN_SIZE": "1",
        "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(5 << 20),
    }
    if guarded:
        environment["INITIAL_NO_AUTH_ACTION_COUNT"] = "1000000"
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    end = time.monotonic() + START_SECONDS
    while not note.exists():
        assert server.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < end, "the S3 server did not start"
        time.sleep(0.05)
    return json.loads(note.read_text())["address"]


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/moto-api/", timeout=60).close()
    except OSError:
        return False
    return True


def _serve(folder: Path) -> None:
    import logging
    import threading

    from moto.moto_server import werkzeug_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    draft = folder / "note.new"
    draft.write_text(json.dumps({"address": f"http://127.0.0.1:{server.server_port}"}))
    draft.rename(folder / "note")
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT)
    fcntl.flock(users, fcntl.LOCK_EX)
    (folder / "note").unlink()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
