"""Ctrl-C: it ends a command quietly while it starts and exits, and is an exception while it runs.

Python's own handler prints a traceback where no code can catch KeyboardInterrupt: in the imports
of the command, and after it.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in prefect_bt/__init__.py
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130
"""Exit code, as of a shell."""

_received: list[int] = []


def exit_on_interrupt() -> None:
    """End the process at once on Ctrl-C, as long as there is nothing to clean up.

    Without effect where Ctrl-C is ignored, as in the background of a script.
    """
    if signal.getsignal(signal.SIGINT) in {signal.default_int_handler, _raise}:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt on Ctrl-C from here on, after `exit_on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, _raise)


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed: libraries replace KeyboardInterrupt by their errors."""
    return bool(_received)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    _ = number, frame
    os._exit(INTERRUPTED)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    _ = frame
    _received.append(number)
    raise KeyboardInterrupt
