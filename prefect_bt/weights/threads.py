"""Threads that take work until there is none: the first fault ends all of them.

Daemon threads, not a pool: a pool's threads are waited for when the interpreter ends, and one that
listens to a silent server would keep Ctrl-C waiting for as long as a stall takes to be noticed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

_STOP_TIMEOUT: Final = 2.0
"""Seconds in which those who have been told to stop may put away what they hold."""
_POLL_INTERVAL: Final = 0.1
"""Seconds between two looks at what others say."""


class EventLike(Protocol):
    """What tells threads to end: an Event, or a Stop."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, seconds: float, /) -> bool: ...


class StopSignal:
    """Set by the first that fails, or by whoever else may stop the work: `outer`."""

    def __init__(self, outer: threading.Event | None = None) -> None:
        self._own, self._outer = threading.Event(), outer

    def is_set(self) -> bool:
        return self._own.is_set() or self.is_set_by_caller

    @property
    def is_set_by_caller(self) -> bool:
        return self._outer is not None and self._outer.is_set()

    def set(self) -> None:
        self._own.set()

    def create_sibling(self) -> StopSignal:
        """For who goes on after the failure: those that it ended stay ended."""
        return StopSignal(self._outer)

    def wait(self, seconds: float, /) -> bool:
        """Whether it is set, after at most so many seconds."""
        until = time.monotonic() + seconds
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            self._own.wait(min(left, _POLL_INTERVAL))
        return self.is_set()


class ClosableGate:
    """What threads use until it is shut, such as open files.

    A thread that a silent server holds may come back long after its work was given up: by then its
    file's number may be another file's.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside, self._shut = 0, False

    @contextmanager
    def hold_open(self) -> Generator[None]:
        """Not shut meanwhile. Shut: it was before."""
        with self._changed:
            if self._shut:
                raise Closed
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._shut:
                    self._changed.notify_all()

    def close(self) -> bool:
        """Waits for those inside; whether it was open until now."""
        with self._changed:
            was_open, self._shut = not self._shut, True
            self._changed.wait_for(lambda: not self._inside)
        return was_open


class Closed(Exception):
    """What this thread worked on was given up."""


def run_interruptibly(call: Callable[[], T], stop: EventLike) -> T | None:
    """What `call` answers, in a thread of its own; None when `stop` was set before it did."""
    found: list[T] = []

    def once() -> bool:
        found.append(call())
        return False

    run_workers(1, once, stop)
    return found[0] if found else None


def run_workers(workers: int, step: Callable[[], bool], stop: EventLike) -> None:
    """Call `step` in `workers` threads until it answers False in each; raises the first error.

    `stop` is set when one failed, and when the caller is interrupted. Returns soon after it was
    set, also when threads are left that listen to a silent server.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set() and step():
                pass
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [
        threading.Thread(target=run, name=f"weights-{n}", daemon=True) for n in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive() and not errors and not stop.is_set():
                thread.join(0.2)
    finally:
        if errors or any(thread.is_alive() for thread in threads):
            stop.set()
            deadline = time.monotonic() + _STOP_TIMEOUT
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
