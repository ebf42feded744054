"""The router as a process of its own: `python -m prefect_bt.serving.router STATE_DIR NAME`."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

from prefect_bt.errors import PrefectBtError, ServerError
from prefect_bt.host.daemon import read_start_time
from prefect_bt.host.job_lock import try_lock
from prefect_bt.serving.router.app import RouterServer
from prefect_bt.serving.router.body_limits import MAX_BODY_BYTES
from prefect_bt.serving.router.deployment_folder import (
    EXIT_EXPLAINED,
    HOST,
    SHUTDOWN_GRACE_SECONDS,
    WAIT_TIMEOUT,
    RouterFolder,
    RouterProcess,
)
from prefect_bt.serving.router.port import open_listening_socket

_LOCK_TIMEOUT = 0.5
"""Seconds in which those who only look must be out of the lock; they hold it for microseconds."""


def main() -> None:
    options = argparse.ArgumentParser(prog="prefect_bt.serving.router")
    options.add_argument("state_dir", type=Path)
    options.add_argument("name")
    options.add_argument("--host", default=HOST, help="where to listen, if that is not known yet")
    options.add_argument(
        "--patience", type=float, default=WAIT_TIMEOUT, help="seconds a request waits"
    )
    options.add_argument(
        "--grace",
        type=float,
        default=SHUTDOWN_GRACE_SECONDS,
        help="seconds in which open requests may finish",
    )
    options.add_argument(
        "--most-bytes", type=int, default=MAX_BODY_BYTES, help="maximum size of a request's body"
    )
    given = options.parse_args()
    try:
        place = RouterFolder.for_deployment(given.state_dir, given.name)
        lock = _acquire_lock(place)
        listening = open_listening_socket(place, given.host)
    except PrefectBtError as error:
        print(error)
        sys.exit(EXIT_EXPLAINED)
    place.write_process(RouterProcess(os.getpid(), read_start_time(os.getpid())))
    _allow_many_connections()
    router = RouterServer(
        place,
        lock,
        wait_timeout=given.patience,
        grace=given.grace,
        log=_log,
        max_body_bytes=given.most_bytes,
    )
    asyncio.run(router.serve(listening))


def _acquire_lock(place: RouterFolder) -> int:
    """The descriptor that holds it, for as long as this process lives."""
    descriptor = place.open_lock_file()
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise ServerError(
                f"Another process routes deployment {place.name!r} already.",
                next_step="Stop it first.",
            )
        time.sleep(0.01)
    return descriptor


def _allow_many_connections() -> None:
    """Each request in flight has two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _log(message: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), message, flush=True)


if __name__ == "__main__":
    main()
