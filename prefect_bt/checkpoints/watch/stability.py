"""Remember how long each checkpoint has been quiet. Pure; uses a monotonic clock.

The necessary time depends on the writer: one and a half times its longest pause so far in this
checkpoint or its series, and at least `settle`; what the files say shortens or lengthens it
(formats/decision.py). Only a first checkpoint whose files prove nothing can be committed too early,
in a pause longer than any before; it is then committed again in a newer version, and its series
waits longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from prefect_bt.checkpoints.formats.decision import (
    ENDED_QUIET,
    GAP_QUIET,
    SIGN_QUIET,
    STILL_WRITING,
    Decision,
    Evidence,
    decide,
)
from prefect_bt.checkpoints.layout import LocalCheckpoint, get_series, is_log, is_state_file

_MAX_PAUSE: Final = 30.0
"""A longer pause is one between two checkpoints of one name, not inside one."""
_STARVATION_LIMIT: Final = 120.0
"""Seconds after which the ordinary quiet time suffices: else a writer that saves every half minute
under one name would never be committed."""

Examine = Callable[[LocalCheckpoint], Evidence]
"""Function that reads what a checkpoint's files say; called only after a quiet time."""


class QuietCheckpoint(NamedTuple):
    """The files to commit, the decision about them, and their seconds without a change."""

    checkpoint: LocalCheckpoint
    decision: Decision
    quiet: float


@dataclass
class _Observation:
    checkpoint: LocalCheckpoint
    stable_since: float
    core_stable_since: float
    """The same as `stable_since`, without files that look like logs."""
    pending_since: float
    """Time of the first change after the last commit; infinite without one."""
    last_changes: frozenset[str] = frozenset()
    """Changed paths between the last two commits, or since the last."""


class StabilityTracker:
    """Remembers the time of the last change of each checkpoint.

    Only the monotonic clock counts, never a file's own times, so a jump of the wall clock or an old
    modification time (a copy, an unpacked archive) changes nothing.
    """

    def __init__(self, settle: float) -> None:
        """`settle` in seconds."""
        self._settle, self._quick = settle, min(settle, ENDED_QUIET)
        self._seen: dict[str, _Observation] = {}
        self._pauses: dict[str, float] = {}
        """Series -> the longest pause inside one of its checkpoints."""

    def observe(self, found: Mapping[str, LocalCheckpoint], *, now: float) -> None:
        """Record the checkpoints at `now`, in seconds of a monotonic clock; forget deleted
        ones.

        A temporary file in a checkpoint counts as a change.
        """
        self._seen = {name: self._observe_one(one, now) for name, one in found.items()}

    def decide(self, name: str, *, now: float, examine: Examine) -> QuietCheckpoint | None:
        """Return the decision about a checkpoint; None while it changes, or if it is unknown.

        Active logs do not hold back the files beside them: these are then committed without the
        logs.
        """
        seen = self._seen.get(name)
        if seen is None:
            return None
        quiet, rhythm = now - seen.stable_since, self._required_quiet(seen, now)
        candidates = [(seen.checkpoint, quiet)] if quiet >= self._quick else []
        core_quiet = now - seen.core_stable_since
        if quiet < core_quiet >= max(2 * rhythm, 3 * self._settle):
            files = {path: stat for path, stat in seen.checkpoint.files.items() if not is_log(path)}
            candidates += [(replace(seen.checkpoint, files=files), core_quiet)] if files else []
        decision = Decision(STILL_WRITING)
        for checkpoint, waited in candidates:
            decision = decide(examine(checkpoint), quiet=waited, rhythm=rhythm)
            if decision.is_commit:
                seen.pending_since = float("inf")
                return QuietCheckpoint(checkpoint, decision, waited)
        return QuietCheckpoint(seen.checkpoint, decision, quiet) if quiet >= rhythm else None

    def quiet_seconds(self, name: str, *, now: float) -> float:
        """Return the seconds since the last change of a checkpoint; 0 if it is unknown."""
        seen = self._seen.get(name)
        return now - seen.stable_since if seen is not None else 0.0

    def seconds_until_due(self, *, now: float) -> float:
        """Return the seconds until a checkpoint may be settled; infinite for none."""
        dues = [
            due
            for seen in self._seen.values()
            for due in (seen.stable_since + wait for wait in self._wait_times(seen, now))
            if due > now
        ]
        return min(dues, default=float("inf")) - now

    def reset(self, name: str) -> None:
        """Forget a checkpoint that changed while it was read."""
        self._seen.pop(name, None)

    def _wait_times(self, seen: _Observation, now: float) -> tuple[float, ...]:
        needed = self._required_quiet(seen, now)
        return self._quick, needed, max(needed, SIGN_QUIET), max(needed, GAP_QUIET)

    def _required_quiet(self, seen: _Observation, now: float) -> float:
        if now - seen.pending_since >= _STARVATION_LIMIT:
            return self._settle
        return max(self._settle, 1.5 * self._pauses.get(get_series(seen.checkpoint.name), 0.0))

    def _observe_one(self, found: LocalCheckpoint, now: float) -> _Observation:
        seen = self._seen.get(found.name)
        if seen is None or seen.stable_since > now:
            return _Observation(found, now, now, now, frozenset(found.files))
        if seen.checkpoint is found:
            return seen
        changed = _changed_paths(seen.checkpoint, found)
        if not changed:
            return seen
        if all(map(is_log, changed)):
            return _Observation(
                found, now, seen.core_stable_since, seen.pending_since, seen.last_changes
            )
        if _is_rewrite(seen, found, changed):
            return _Observation(found, now, now, now, frozenset(changed))
        self._record_pause(found.name, now - seen.core_stable_since)
        return _Observation(
            found, now, now, min(seen.pending_since, now), seen.last_changes.union(changed)
        )

    def _record_pause(self, name: str, pause: float) -> None:
        if pause <= _MAX_PAUSE:
            stem = get_series(name)
            self._pauses[stem] = max(pause, self._pauses.get(stem, 0.0))


def _is_rewrite(seen: _Observation, found: LocalCheckpoint, changed: list[str]) -> bool:
    """Return whether a writer writes the same files again, after the end and not after a pause.

    A file that only grows may be the same one, committed too early.
    """
    if seen.pending_since != float("inf"):
        return False
    for path in seen.last_changes.intersection(changed):
        before, after = seen.checkpoint.files.get(path), found.files.get(path)
        grew = before and after and before.inode == after.inode and before.size < after.size
        if not grew:
            return True
    return False


def _changed_paths(before: LocalCheckpoint, after: LocalCheckpoint) -> list[str]:
    """Return added, deleted and changed paths.

    The FileStat of an unchanged file is mostly the same object, so identity is compared first.
    """
    changed: list[str] = []
    for old, new in ((before.files, after.files), (before.temporary_files, after.temporary_files)):
        for path, fact in new.items():
            known = old.get(path)
            if known is not fact and known != fact:
                changed.append(path)
        changed.extend(old.keys() - new.keys())
    return changed


def has_new_state(found: LocalCheckpoint, *, since: LocalCheckpoint | None) -> bool:
    """Return whether a file that looks like a training state was added or changed."""
    before = since.files if since is not None else {}
    return any(
        before.get(path) is not fact and before.get(path) != fact and is_state_file(path)
        for path, fact in found.files.items()
    )
