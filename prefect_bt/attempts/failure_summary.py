"""What the ranks of an attempt did when one had failed, in a sentence that 64 of them fit into."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from prefect_bt.attempts.diagnosis import find_signal, is_agent_lost
from prefect_bt.ledger.records import NodePhase, NodeStatus, StopReason
from prefect_bt.text.ranks import format_ranks

_MAX_EXIT_CODES: Final = 3
_OUR_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGKILL})
_NEVER_REQUESTED: Final = frozenset({StopReason.ORPHANED, StopReason.CONTAINER_GONE})


def ended_on_request(status: NodeStatus, *, requested_at: float | None = None) -> bool:
    """Whether the gang, or one that watched before, asked the node to end and it did.

    `requested_at` is when this gang asked it: what had ended before had ended by itself. None where
    it did not; a node that says "stopped" was then sent a signal by something else.
    """
    if status.phase is NodePhase.LOST or is_agent_lost(status) or _failed_setup(status):
        return False
    if not status.reason or status.stop_reason in _NEVER_REQUESTED:
        return False
    if requested_at is None and status.stop_reason is StopReason.STOPPED:
        return False
    if requested_at is None or status.ended_at is None or status.ended_at >= requested_at:
        return True
    return find_signal(status) in _OUR_SIGNALS  # its clock is behind


def format_moment(at: float | None, started_at: float | None) -> str:
    """`at 14:02:07 UTC, 03:12 after the start`; what is not known is left out."""
    if at is None:
        return ""
    clock = f"at {datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
    return (
        clock
        if started_at is None
        else f"{clock}, {_format_elapsed(at - started_at)} after the start"
    )


def summarize_other_ranks(
    statuses: Sequence[NodeStatus], first: NodeStatus, *, requested_at: Mapping[int, float]
) -> str:
    """The other ranks' ends: `Then ranks 0-5, 7 were stopped.` Empty for a gang of one.

    `requested_at`: rank -> when this gang told it to stop.
    """
    others = [status for status in statuses if status.rank != first.rank]
    groups: dict[str, list[NodeStatus]] = {}
    for status in others:
        groups.setdefault(_end_clause(status, requested_at.get(status.rank)), []).append(status)
    by_code = sorted(how for how in groups if how.startswith(_EXITED_PREFIX))
    if len(by_code) > _MAX_EXIT_CODES:
        merged = [status for how in by_code for status in groups.pop(how)]
        codes = ", ".join(sorted({str(one.exit_code) for one in merged}, key=lambda c: (len(c), c)))
        groups[f"{_EXITED_PREFIX}{codes}"] = merged
    said = [_format_clause(how, groups[how], first) for how in sorted(groups, key=_clause_order)]
    then = f"Then {', '.join(said)}." if said else ""
    return " ".join(filter(None, [then, _format_upload_errors(statuses)]))


# A group's key is what its clause says; "was" becomes "were" for several.
_EXITED_PREFIX: Final = "exited with "
_SUCCEEDED: Final = "had exited with 0"
_STOPPED: Final = "was stopped"
_KILLED: Final = "had to be killed"
_LOST: Final = "was lost"
_ORPHANED: Final = "stopped, unwatched"
_NOT_SET_UP: Final = "could not be set up"
_CLAUSE_ORDER: Final = (_SUCCEEDED, _LOST, _NOT_SET_UP, _ORPHANED, _STOPPED, _KILLED)


def _end_clause(status: NodeStatus, requested_at: float | None) -> str:
    if status.phase is NodePhase.LOST or is_agent_lost(status):
        return _LOST
    if _failed_setup(status):
        return _NOT_SET_UP
    if status.stop_reason is StopReason.ORPHANED:
        return _ORPHANED
    asked = ended_on_request(status, requested_at=requested_at)
    if asked or status.exit_code is None:
        return _KILLED if find_signal(status) == signal.SIGKILL else _STOPPED
    return f"{_EXITED_PREFIX}{status.exit_code}" if status.exit_code else _SUCCEEDED


def _format_clause(how: str, group: Sequence[NodeStatus], first: NodeStatus) -> str:
    several = len(group) > 1
    words = how.replace("was ", "were ", 1) if several else how
    if how.startswith(_EXITED_PREFIX):
        words += f" by {'themselves' if several else 'itself'}{_format_delay(group, first)}"
    return f"{format_ranks(one.rank for one in group)} {words}"


def _format_delay(group: Sequence[NodeStatus], first: NodeStatus) -> str:
    ends = [one.ended_at for one in group if one.ended_at is not None]
    if not ends or first.ended_at is None:
        return ""
    return f" within {max(1, math.ceil(max(ends) - first.ended_at))} s"


def _clause_order(how: str) -> tuple[int, str]:
    return (_CLAUSE_ORDER.index(how) + 1 if how in _CLAUSE_ORDER else 0, how)


def _format_upload_errors(statuses: Sequence[NodeStatus]) -> str:
    failed = [status for status in statuses if status.upload_error]
    if not failed:
        return ""
    error = failed[0].upload_error.rstrip(".")
    whose = format_ranks(one.rank for one in failed)
    return f"What {whose} had written could not be uploaded: {error}."


def _failed_setup(status: NodeStatus) -> bool:
    """Its commands never began, and it says with an exit code that this was a failure."""
    return status.started_at is None and bool(status.exit_code)


def _format_elapsed(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
