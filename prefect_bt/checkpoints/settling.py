"""Which checkpoints have been quiet long enough. Pure: what was found and a monotonic clock in.

How long is enough follows from the writer: half as long again as its longest pause so far, while it
wrote this checkpoint or one like it, and at least `settle`. Where the files prove that their writer
is done (endings.finished), a moment suffices; where they look like a beginning, it takes longer
(endings.doubt). Only a first checkpoint whose files prove nothing
can be taken too early, in a pause longer than any before; it is then committed again, newer, and
its like are waited for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from prefect_bt.checkpoints.layout import Found, stem_of

_LONGEST: Final = 30.0
"""A pause longer than this lies between two checkpoints under one name, not inside one."""
_QUICK: Final = 0.5
_DOUBT: Final = 20.0
"""How long a beginning that a finished writer might also leave is waited for."""
_LOGS: Final = re.compile(
    r"(?:.*/)?(?:.*\.(?:log|txt|jsonl|csv|tsv|out|err|wandb)|events\.out\.tfevents\..*)"
)


class Questions(Protocol):
    """What is asked of a checkpoint's files (endings), only once they have been quiet a while."""

    def finished(self) -> bool:
        """Whether they prove that their writer is done."""
        ...

    def doubt(self) -> bool:
        """Whether they look like a beginning."""
        ...


@dataclass
class _Seen:
    found: Found
    since: float
    core_since: float
    """The same without what looks like a log."""


class Settling:
    """Remembers since when each checkpoint looks as it does.

    Only the clock handed in counts, never a file's own times, so a jump of the wall clock or an old
    modification time (a copy, an unpacked archive) changes nothing.
    """

    def __init__(self, settle: float) -> None:
        """`settle` in seconds."""
        self._settle, self._quick = settle, min(settle, _QUICK)
        self._seen: dict[str, _Seen] = {}
        self._pauses: dict[str, float] = {}
        """Stem -> the longest pause inside one of its checkpoints."""

    def observe(self, found: Mapping[str, Found], *, now: float) -> None:
        """Take note, `now` in seconds of a monotonic clock. What is gone is forgotten.

        A temporary file in a checkpoint counts as change.
        """
        self._seen = {name: self._saw(one, now) for name, one in found.items()}

    def settled(self, name: str, *, now: float, ask: Questions) -> Found | None:
        """What is to be taken of this checkpoint, None while it is being written.

        Logs that never rest do not hold back the files beside them: then these come without them.
        """
        seen = self._seen.get(name)
        if seen is None:
            return None
        needed = self._needed(name)
        quiet = now - seen.since
        if quiet >= self._quick and ask.finished():
            return seen.found
        if quiet >= needed and (quiet >= _DOUBT or not ask.doubt()):
            return seen.found
        core_quiet = now - seen.core_since
        if quiet < core_quiet >= max(2 * needed, 3 * self._settle):
            core = {path: fact for path, fact in seen.found.files.items() if not is_log(path)}
            if core and (core_quiet >= _DOUBT or not ask.doubt()):
                return replace(seen.found, files=core)
        return None

    def next_due(self, *, now: float) -> float:
        """Seconds until something may be settled that is not yet; infinite if nothing may."""
        dues = [
            due
            for name, seen in self._seen.items()
            for due in (seen.since + wait for wait in self._waits(name))
            if due > now
        ]
        return min(dues, default=float("inf")) - now

    def forget(self, name: str) -> None:
        """Start over for a checkpoint that changed while it was read."""
        self._seen.pop(name, None)

    def _waits(self, name: str) -> tuple[float, ...]:
        needed = self._needed(name)
        return self._quick, needed, max(needed, _DOUBT)

    def _needed(self, name: str) -> float:
        return max(self._settle, 1.5 * self._pauses.get(stem_of(name), 0.0))

    def _saw(self, found: Found, now: float) -> _Seen:
        seen = self._seen.get(found.name)
        if seen is None or seen.since > now:
            return _Seen(found, now, now)
        if seen.found is found:
            return seen
        changed = _changed(seen.found, found)
        if not changed:
            return seen
        if all(map(is_log, changed)):
            return _Seen(found, now, seen.core_since)
        self._learn(found.name, now - seen.core_since)
        return _Seen(found, now, now)

    def _learn(self, name: str, pause: float) -> None:
        if pause <= _LONGEST:
            stem = stem_of(name)
            self._pauses[stem] = max(pause, self._pauses.get(stem, 0.0))


def _changed(before: Found, after: Found) -> list[str]:
    """Paths that came, went or changed. Facts that did not change are mostly the same objects."""
    changed: list[str] = []
    for old, new in ((before.files, after.files), (before.unfinished, after.unfinished)):
        for path, fact in new.items():
            known = old.get(path)
            if known is not fact and known != fact:
                changed.append(path)
        changed.extend(old.keys() - new.keys())
    return changed


def is_log(path: str) -> bool:
    """Whether a file of this name is written for as long as the training runs."""
    return _LOGS.fullmatch(path) is not None
