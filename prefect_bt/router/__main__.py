"""The router as a process of its own: `python -m prefect_bt.router STATE_DIR NAME`."""

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
from prefect_bt.ownership import try_lock
from prefect_bt.router.bodies import MOST_BYTES
from prefect_bt.router.listening import listen
from prefect_bt.router.place import GRACE, HOST, PATIENCE, TOLD, RouterPlace, Running
from prefect_bt.router.serving import Serving
from prefect_bt.servers import process_started

_LOCK_PATIENCE = 0.5
"""Seconds in which those who only look must be out of the lock; they hold it for microseconds."""


def main() -> None:
    options = argparse.ArgumentParser(prog="prefect_bt.router")
    options.add_argument("state_dir", type=Path)
    options.add_argument("name")
    options.add_argument("--host", default=HOST, help="where to listen, if that is not known yet")
    options.add_argument("--patience", type=float, default=PATIENCE, help="seconds a request waits")
    options.add_argument("--grace", type=float, default=GRACE, help="seconds to end requests in")
    options.add_argument("--most-bytes", type=int, default=MOST_BYTES, help="of a request's body")
    given = options.parse_args()
    try:
        place = RouterPlace.of(given.state_dir, given.name)
        lock = _lock(place)
        listening = listen(place, given.host)
    except PrefectBtError as error:
        print(error)
        sys.exit(TOLD)
    place.set_running(Running(os.getpid(), process_started(os.getpid())))
    _allow_many_connections()
    times = {"patience": given.patience, "grace": given.grace}
    router = Serving(place, lock, **times, say=_say, most_bytes=given.most_bytes)
    asyncio.run(router.serve(listening))


def _lock(place: RouterPlace) -> int:
    """The descriptor that holds it, for as long as this process lives."""
    descriptor = place.open_lock()
    deadline = time.monotonic() + _LOCK_PATIENCE
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


def _say(sentence: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), sentence, flush=True)


if __name__ == "__main__":
    main()
