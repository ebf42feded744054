"""From how a node ended to a failure class and a sentence: tables, never message text."""

from __future__ import annotations

import signal
from typing import Final

from prefect_bt.records import FailureClass, NodePhase, NodeStatus

OUTSIDE_SIGNALS: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})
"""Sent by an operator, a reclaimed machine or the kernel, not by the program's own fault."""

EXIT_CODES: Final[dict[int, str]] = {
    126: "the command was found but cannot be executed: is it `chmod +x`, and has it a shebang?",
    127: "a command was not found: is it installed, and on PATH?",
}


def classify(status: NodeStatus) -> tuple[FailureClass, str]:
    """The retry budget that the failure draws on, and one sentence with what to do."""
    if status.oom:
        return FailureClass.OUT_OF_MEMORY, (
            "it was killed for lack of memory. Ask for more compute.memory, or make the batch "
            "smaller."
        )
    if status.phase is NodePhase.LOST:
        return FailureClass.INFRASTRUCTURE, "its process is gone without a word (killed?)."
    if status.reason == "orphaned":
        return FailureClass.INFRASTRUCTURE, "nothing watched over the job any more; it stopped."
    if status.started_at is None:
        return FailureClass.INFRASTRUCTURE, f"it could not be set up: {status.reason}."
    return _classify_exit(status)


def _classify_exit(status: NodeStatus) -> tuple[FailureClass, str]:
    code = status.exit_code if status.exit_code is not None else -1
    number = status.signal or (code - 128 if 128 < code < 160 else None)
    which = f"start command {(status.command or 0) + 1}"
    if number in OUTSIDE_SIGNALS:
        name = signal.Signals(number).name
        return FailureClass.INFRASTRUCTURE, f"{which} was ended from outside by {name}."
    if number is not None and number in {known.value for known in signal.Signals}:
        return FailureClass.USER, f"{which} died of {signal.Signals(number).name}."
    hint = EXIT_CODES.get(code)
    return FailureClass.USER, f"{which} exited with {code}" + (f": {hint}" if hint else ".")
