"""Threads that take work until there is none: the first fault ends all of them.

Daemon threads, not a pool: a pool's threads are waited for when the interpreter ends, and one that
listens to a silent server would keep Ctrl-C waiting for as long as a stall takes to be noticed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

_PATIENCE: Final = 2.0
"""Seconds in which those who have been told to stop may put away what they hold."""
_LOOK: Final = 0.1
"""Seconds between two looks at what others say."""


class Stops(Protocol):
    """What tells threads to end: an Event, or a Stop."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, seconds: float, /) -> bool: ...


class Stop:
    """Set by the first that fails, or by whoever else may stop the work: `outer`."""

    def __init__(self, outer: threading.Event | None = None) -> None:
        self._own, self._outer = threading.Event(), outer

    def is_set(self) -> bool:
        return self._own.is_set() or self.by_others

    @property
    def by_others(self) -> bool:
        return self._outer is not None and self._outer.is_set()

    def set(self) -> None:
        self._own.set()

    def clear(self) -> None:
        """The failure was dealt with; what others said stands."""
        self._own.clear()

    def wait(self, seconds: float, /) -> bool:
        """Whether it is set, after at most so many seconds."""
        until = time.monotonic() + seconds
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            self._own.wait(min(left, _LOOK))
        return self.is_set()


def work(hands: int, take: Callable[[], bool], stop: Stops) -> None:
    """Call `take` in `hands` threads until it answers False in each; raises the first error.

    `stop` is set when one failed, and when the caller is interrupted.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set() and take():
                pass
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, name=f"weights-{n}", daemon=True) for n in range(hands)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive() and not errors:
                thread.join(0.2)
    finally:
        if errors or any(thread.is_alive() for thread in threads):
            stop.set()
            deadline = time.monotonic() + _PATIENCE
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
