"""What the ranks of an attempt did when one had failed, in a sentence that 64 of them fit into."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from prefect_bt.diagnosis import ORPHANED, is_dying, signal_of
from prefect_bt.host.container import CONTAINER_GONE
from prefect_bt.ranks import ranks_in_words
from prefect_bt.records import NodePhase, NodeStatus

STOPPED: Final = "stopped"
"""Somebody asked the job to stop; also what a node says that was sent a signal itself."""
STRAGGLER: Final = "straggler"
MAX_RUN_TIME: Final = "maximum run time"
"""The job's commands have run as long as they may."""

_MOST_CODES: Final = 3
_OURS: Final = frozenset({signal.SIGTERM, signal.SIGKILL})


def was_asked(status: NodeStatus, *, asked_at: float | None = None) -> bool:
    """Whether the gang, or one that watched before, asked the node to end and it did.

    `asked_at` is when this gang asked it: what had ended before had ended by itself. None where
    it did not; a node that says "stopped" was then sent a signal by something else.
    """
    if status.phase is NodePhase.LOST or is_dying(status) or _never_set_up(status):
        return False
    if status.reason in {"", ORPHANED, CONTAINER_GONE}:
        return False
    if asked_at is None and status.reason == STOPPED:
        return False
    if asked_at is None or status.ended_at is None or status.ended_at >= asked_at:
        return True
    return signal_of(status) in _OURS  # its clock is behind


def moment(at: float | None, began: float | None) -> str:
    """`at 14:02:07 UTC, 03:12 after the start`; what is not known is left out."""
    if at is None:
        return ""
    clock = f"at {datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
    return clock if began is None else f"{clock}, {_span(at - began)} after the start"


def aftermath(
    statuses: Sequence[NodeStatus], first: NodeStatus, *, asked: Mapping[int, float]
) -> str:
    """The other ranks' ends: `Then ranks 0-5, 7 were stopped.` Empty for a gang of one.

    `asked`: rank -> when this gang told it to stop.
    """
    others = [status for status in statuses if status.rank != first.rank]
    groups: dict[str, list[NodeStatus]] = {}
    for status in others:
        groups.setdefault(_how(status, asked.get(status.rank)), []).append(status)
    by_code = sorted(how for how in groups if how.startswith(_BY_ITSELF))
    if len(by_code) > _MOST_CODES:
        merged = [status for how in by_code for status in groups.pop(how)]
        codes = ", ".join(sorted({str(one.exit_code) for one in merged}, key=lambda c: (len(c), c)))
        groups[f"{_BY_ITSELF}{codes}"] = merged
    said = [_clause(how, groups[how], first) for how in sorted(groups, key=_order)]
    then = f"Then {', '.join(said)}." if said else ""
    return " ".join(filter(None, [then, _uploads(statuses)]))


# A group's key is what its clause says; "was" becomes "were" for several.
_BY_ITSELF: Final = "exited with "
_DONE: Final = "had exited with 0"
_STOPPED: Final = "was stopped"
_KILLED: Final = "had to be killed"
_LOST: Final = "was lost"
_ORPHANED: Final = "stopped, unwatched"
_UNSET: Final = "could not be set up"
_LAST: Final = (_DONE, _LOST, _UNSET, _ORPHANED, _STOPPED, _KILLED)


def _how(status: NodeStatus, asked_at: float | None) -> str:
    if status.phase is NodePhase.LOST or is_dying(status):
        return _LOST
    if _never_set_up(status):
        return _UNSET
    if status.reason == ORPHANED:
        return _ORPHANED
    asked = was_asked(status, asked_at=asked_at)
    if asked or status.exit_code is None:
        return _KILLED if signal_of(status) == signal.SIGKILL else _STOPPED
    return f"{_BY_ITSELF}{status.exit_code}" if status.exit_code else _DONE


def _clause(how: str, group: Sequence[NodeStatus], first: NodeStatus) -> str:
    several = len(group) > 1
    words = how.replace("was ", "were ", 1) if several else how
    if how.startswith(_BY_ITSELF):
        words += f" by {'themselves' if several else 'itself'}{_within(group, first)}"
    return f"{ranks_in_words(one.rank for one in group)} {words}"


def _within(group: Sequence[NodeStatus], first: NodeStatus) -> str:
    ends = [one.ended_at for one in group if one.ended_at is not None]
    if not ends or first.ended_at is None:
        return ""
    return f" within {max(1, math.ceil(max(ends) - first.ended_at))} s"


def _order(how: str) -> tuple[int, str]:
    return (_LAST.index(how) + 1 if how in _LAST else 0, how)


def _uploads(statuses: Sequence[NodeStatus]) -> str:
    failed = [status for status in statuses if status.upload_error]
    if not failed:
        return ""
    error = failed[0].upload_error.rstrip(".")
    whose = ranks_in_words(one.rank for one in failed)
    return f"What {whose} had written could not be uploaded: {error}."


def _never_set_up(status: NodeStatus) -> bool:
    """Its commands never began, and it says with an exit code that this was a failure."""
    return status.started_at is None and bool(status.exit_code)


def _span(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
