"""Daemon threads that take work until there is none, and calls that are repeated after a pause.

A ThreadPoolExecutor would not do: the interpreter joins its threads at exit, so that a thread that
reads from a silent server would delay Ctrl-C until the read times out.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from prefect_bt.errors import PrefectBtError

T = TypeVar("T")
RETRY_DELAYS: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further request to a source that brought nothing."""
MAX_ANNOUNCED_WAIT: Final = 3600.0
"""Seconds that one request waits in all because a server asks for it, beside the retries."""
_STOP_TIMEOUT: Final = 2.0
"""Seconds that threads have to end after `stop` was set."""
_POLL_INTERVAL: Final = 0.1


class StopSignal:
    """Event that is set by itself, or together with the event `outer` of the caller."""

    def __init__(self, outer: EventLike | None = None) -> None:
        self._own, self._outer = threading.Event(), outer

    def is_set(self) -> bool:
        return self._own.is_set() or (self._outer is not None and self._outer.is_set())

    def set(self) -> None:
        self._own.set()

    def wait(self, seconds: float, /) -> bool:
        until = time.monotonic() + seconds
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            self._own.wait(min(left, _POLL_INTERVAL))
        return self.is_set()


EventLike = threading.Event | StopSignal


class Closed(Exception):
    """The file or tree that this thread writes to was closed: its download has ended."""


def call_with_retries(
    call: Callable[[], T],
    delays: Sequence[float],
    stop: EventLike,
    error_class: type[PrefectBtError],
    on_retry: Callable[[str], None] | None = None,
) -> T:
    """Return the result of `call`; raise its error when no delay is left or `stop` is set.

    Each delay has jitter. A wait of the error's `retry_after` uses up no delay, within a limit.
    """
    remaining, waited = iter(delays), 0.0
    while True:
        try:
            return call()
        except error_class as error:
            announced = getattr(error, "retry_after", 0.0)
            if 0 < announced <= MAX_ANNOUNCED_WAIT - waited:
                waited += announced
                pause = announced + random.random()  # noqa: S311 (the server has rounded)
                note = f"waits {announced:.0f} s: {error.message}"
            elif (delay := next(remaining, None)) is not None:
                pause = delay * random.uniform(0.6, 1.4)  # noqa: S311
                note = f"tried again: {error.message}"
            else:
                raise
            if on_retry:
                on_retry(note)
            if stop.wait(pause):
                raise


def run_workers(count: int | Callable[[], int], step: Callable[[], bool], stop: EventLike) -> None:
    """Call `step` in `count` threads until it returns False in each. Raise the first error.

    If `count` is a function, threads are added when its result grows. An error or an interrupt of
    the caller sets `stop`. Return within seconds after `stop` was set, even while threads are still
    blocked in a read.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set() and step():
                pass
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads: list[threading.Thread] = []
    try:
        while not stop.is_set():
            for number in range(len(threads), count() if callable(count) else count):
                threads.append(threading.Thread(target=run, name=f"weights-{number}", daemon=True))
                threads[-1].start()
            alive = next((thread for thread in threads if thread.is_alive()), None)
            if alive is None:
                break
            alive.join(_POLL_INTERVAL)
    finally:
        if errors or any(thread.is_alive() for thread in threads):
            stop.set()
            deadline = time.monotonic() + _STOP_TIMEOUT
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
