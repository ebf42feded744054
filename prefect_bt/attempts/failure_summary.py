"""What the ranks of an attempt did when one had failed, in a sentence that 64 of them fit into."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from prefect_bt.attempts.failure_causes import diagnose_node, find_signal, is_agent_lost
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.text.number_ranges import format_ranks

_MAX_EXIT_CODES: Final = 3
_MAX_FIRST_FAILURES: Final = 3
_OUR_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGKILL})
_NEVER_REQUESTED: Final = frozenset(
    {StopReason.ORPHANED, StopReason.CONTAINER_GONE, StopReason.POD_DELETED}
)
_DISRUPTIONS: Final = frozenset(
    {Cause.EVICTED, Cause.PREEMPTED, Cause.NODE_LOST, Cause.POD_DELETED}
)
"""Causes of a substrate that ended the node by itself."""


def ended_on_request(status: NodeStatus, *, requested_at: float | None = None) -> bool:
    """Return whether the node ended because a gang requested it.

    `requested_at`: time of this gang's request; a node that had ended before ended by itself. None
    without a request: a node with the reason "stopped" got its signal from another process.
    """
    if status.phase is NodePhase.LOST or is_agent_lost(status) or _failed_setup(status):
        return False
    if not status.reason or status.stop_reason in _NEVER_REQUESTED or status.cause in _DISRUPTIONS:
        return False
    if requested_at is None and status.stop_reason is StopReason.STOPPED:
        return False
    if requested_at is None or status.ended_at is None or status.ended_at >= requested_at:
        return True
    return find_signal(status) in _OUR_SIGNALS  # its clock is behind


def describe_first_failures(firsts: Sequence[NodeStatus], started_at: float | None) -> str:
    """Return the causes of the rank that failed first, or of all that may have been the first."""
    first = " failed first" if len(firsts) == 1 else ""
    causes: list[str] = []
    for status in firsts[:_MAX_FIRST_FAILURES]:
        when = format_moment(status.ended_at, started_at)
        what = diagnose_node(status).message
        causes.append(f"Rank {status.rank}{first}{f', {when}' if when else ''}: {what}")
    if first:
        return causes[0]
    ranks = format_ranks(status.rank for status in firsts)
    return (
        f"{ranks[:1].upper()}{ranks[1:]} failed at about the same time; which was first is not "
        f"known, because the clocks of their machines may differ. {' '.join(causes)}"
    )


def format_moment(at: float | None, started_at: float | None) -> str:
    """Return `at 14:02:07 UTC, 03:12 after the start`, without the unknown parts."""
    if at is None:
        return ""
    clock = f"at {format_clock_time(at)}"
    return (
        clock
        if started_at is None
        else f"{clock}, {_format_elapsed(at - started_at)} after the start"
    )


def format_clock_time(at: float | None) -> str:
    """`14:02:07 UTC`; "" for None"""
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"


def summarize_other_ranks(
    statuses: Sequence[NodeStatus], first: NodeStatus, *, requested_at: Mapping[int, float]
) -> str:
    """Return the ends of the other ranks: `Then ranks 0-5, 7 were stopped.`; "" for one node.

    `requested_at`: time of this gang's stop request, by rank.
    """
    groups: dict[tuple[_RankEnd, str], list[NodeStatus]] = {}
    for status in statuses:
        if status.rank != first.rank:
            end = _rank_end(status, requested_at.get(status.rank))
            codes = str(status.exit_code) if end is _RankEnd.EXITED else ""
            groups.setdefault((end, codes), []).append(status)
    exited = [key for key in groups if key[0] is _RankEnd.EXITED]
    if len(exited) > _MAX_EXIT_CODES:
        codes = ", ".join(sorted((code for _, code in exited), key=lambda c: (len(c), c)))
        groups[_RankEnd.EXITED, codes] = [one for key in exited for one in groups.pop(key)]
    order = list(_RankEnd)
    ends = sorted(groups, key=lambda key: (order.index(key[0]), key[1]))
    said = [_format_clause(end, codes, groups[end, codes], first) for end, codes in ends]
    then = f"Then {', '.join(said)}." if said else ""
    return " ".join(filter(None, [then, _format_upload_errors(statuses)]))


class _RankEnd(Enum):
    """How a rank ended, in the order of the clauses: the phrase for one rank, and for several."""

    EXITED = "exited with {codes} by itself{delay}", "exited with {codes} by themselves{delay}"
    SUCCEEDED = "had exited with 0", "had exited with 0"
    LOST = "was lost", "were lost"
    NOT_SET_UP = "could not be set up", "could not be set up"
    ORPHANED = "stopped, unwatched", "stopped, unwatched"
    STOPPED = "was stopped", "were stopped"
    KILLED = "had to be killed", "had to be killed"


def _rank_end(status: NodeStatus, requested_at: float | None) -> _RankEnd:
    if status.phase is NodePhase.LOST or is_agent_lost(status):
        return _RankEnd.LOST
    if _failed_setup(status):
        return _RankEnd.NOT_SET_UP
    if status.stop_reason is StopReason.ORPHANED:
        return _RankEnd.ORPHANED
    asked = ended_on_request(status, requested_at=requested_at)
    if asked or status.exit_code is None:
        killed = find_signal(status) == signal.SIGKILL
        return _RankEnd.KILLED if killed else _RankEnd.STOPPED
    return _RankEnd.EXITED if status.exit_code else _RankEnd.SUCCEEDED


def _format_clause(
    end: _RankEnd, codes: str, group: Sequence[NodeStatus], first: NodeStatus
) -> str:
    one, several = end.value
    words = (several if len(group) > 1 else one).format(
        codes=codes, delay=_format_delay(group, first)
    )
    return f"{format_ranks(status.rank for status in group)} {words}"


def _format_delay(group: Sequence[NodeStatus], first: NodeStatus) -> str:
    ends = [one.ended_at for one in group if one.ended_at is not None]
    if not ends or first.ended_at is None:
        return ""
    return f" within {max(1, math.ceil(max(ends) - first.ended_at))} s"


def _format_upload_errors(statuses: Sequence[NodeStatus]) -> str:
    failed = [status for status in statuses if status.upload_error]
    if not failed:
        return ""
    error = failed[0].upload_error.rstrip(".")
    whose = format_ranks(one.rank for one in failed)
    return f"What {whose} had written could not be uploaded: {error}."


def _failed_setup(status: NodeStatus) -> bool:
    """Return whether the setup failed: the commands never began, and there is an exit code."""
    return status.started_at is None and bool(status.exit_code)


def _format_elapsed(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
