"""Large files in blocks: several connections share one file, and pass on to the next.

Of each file the first block that is missing is the next to be asked for, and connections go to the
file that has the fewest: so most bytes come in order, and their digest is taken from memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from prefect_bt.weights.crew import work
from prefect_bt.weights.fetching import (
    TRIES,
    Fetching,
    check_stop,
    damaged_twice,
    ended_early,
    find_fault,
)
from prefect_bt.weights.following import Following
from prefect_bt.weights.index import identity
from prefect_bt.weights.listing import ListedFile, digests_for
from prefect_bt.weights.parts import Busy, Part, PartFolder, part_id
from prefect_bt.weights.retrying import PAUSES, again
from prefect_bt.weights.source import Interrupted, NoRanges

FILES_AT_ONCE: Final = 8
PROGRESS: Final = 1 << 20
"""Bytes after which a try counts as one that went well."""
_LOOK: Final = 0.2
"""Seconds between two looks at a file that another process fetches."""


class _Arriving:
    """One file, its blocks that nobody has taken yet, and how many are not back."""

    def __init__(self, fetching: Fetching, file: ListedFile, part: Part, tries: int) -> None:
        self.file, self.part, self.tries = file, part, tries
        self.todo: deque[int | None] = deque(part.missing())
        if not self.todo:
            self.todo.append(None)  # all of it was here, but for the look at its digest
        self.left = len(self.todo)
        self.hands = 0
        """Connections that work on it."""
        digests = digests_for(file, part.size)
        self.following = Following(part, digests, fetching.stop.is_set)


class Blocks:
    def __init__(self, fetching: Fetching, files: Sequence[ListedFile]) -> None:
        self._fetching = fetching
        self._waiting = deque((file, 0) for file in files)
        self._busy: list[ListedFile] = []
        self._arriving: list[_Arriving] = []
        """Files with blocks that nobody has taken yet."""
        self._open: set[Part] = set()
        self._lock = threading.Lock()

    def run(self, hands: int) -> None:
        """Until every file is in the fill. WeightsError, OSError."""
        try:
            while self._waiting:
                work(hands, self._take, self._fetching.stop)
                check_stop(self._fetching)
                if not self._waiting:
                    self._await_others()
        except NoRanges:
            for part in list(self._open):  # of no use to who reads from the beginning to the end
                part.remove()
                self._close(part)
                self._fetching.meter.undo(part.arrived)
            raise
        finally:
            for part in list(self._open):
                self._close(part)

    # -- who does what ------------------------------------------------------------------------

    def _take(self) -> bool:
        with self._lock:
            found = self._next()
        if found is None:
            return False
        arriving, block = found
        if block is not None:
            self._bring(arriving, block)
        if self._fetching.stop.is_set():
            return False
        with self._lock:
            arriving.hands -= 1
            arriving.left -= 1
            last = arriving.left == 0
        if last:
            self._finish(arriving)
        return True

    def _next(self) -> tuple[_Arriving, int | None] | None:
        while self._waiting and len(self._arriving) < FILES_AT_ONCE:
            begun = self._begin(*self._waiting.popleft())
            if begun is not None:
                self._arriving.append(begun)
        if not self._arriving:
            return None
        chosen = min(self._arriving, key=lambda one: one.hands)
        block = chosen.todo.popleft()
        if not chosen.todo:
            self._arriving.remove(chosen)
        chosen.hands += 1
        return chosen, block

    def _begin(self, file: ListedFile, tries: int) -> _Arriving | None:
        try:
            part = open_part(self._fetching, file)
        except Busy:
            self._busy.append(file)
            return None
        if part is None:
            return None
        self._open.add(part)
        self._fetching.meter.here(part.arrived)
        return _Arriving(self._fetching, file, part, tries)

    def _await_others(self) -> None:
        """Files that another process fetches: they are here when it is done, or are ours then."""
        fetching = self._fetching
        for file in self._busy:
            fetching.meter.note(f"another process fetches {file.path}")
            while part_of(fetching, file).is_busy():
                check_stop(fetching)
                time.sleep(_LOOK)
            fetching.fill.index.refresh()
            if fetching.fill.link_known(file):
                fetching.meter.here(file.size or 0, files=1)
            else:
                self._waiting.append((file, 0))
        self._busy.clear()

    # -- one block ----------------------------------------------------------------------------

    def _bring(self, arriving: _Arriving, block: int) -> None:
        fetching = self._fetching
        again(
            lambda: self._continue(arriving, block),
            PAUSES,
            fetching.stop,
            fetching.meter.note,
        )

    def _continue(self, arriving: _Arriving, block: int) -> None:
        """The rest of the block, once more for as long as each time brings much of it."""
        part = arriving.part
        while not self._fetching.stop.is_set():
            before = part.done[block]
            try:
                return self._read(arriving, block)
            except Interrupted as error:
                if part.done[block] - before < PROGRESS or error.after:
                    raise
        return None

    def _read(self, arriving: _Arriving, block: int) -> None:
        part, fetching = arriving.part, self._fetching
        begin, end = part.span(block)
        at = begin + part.done[block]
        if at == end:
            return
        for piece in fetching.origins.read(arriving.file, start=at, length=end - at):
            written = part.write(block, piece)
            arriving.following.offer(at, memoryview(piece)[:written])
            fetching.meter.moved(written)
            at += written
            if fetching.stop.is_set():
                return
        if at < end:
            raise ended_early(fetching.source, arriving.file, at)

    # -- one file -----------------------------------------------------------------------------

    def _finish(self, arriving: _Arriving) -> None:
        fetching, part, file = self._fetching, arriving.part, arriving.file
        found = arriving.following.result()
        if fetching.stop.is_set():
            return
        fault = settle_part(fetching, file, part, found)
        self._close(part)
        if not fault:
            return
        if arriving.tries + 1 == TRIES:
            raise damaged_twice(fetching.source, file, fault)
        with self._lock:
            self._waiting.append((file, arriving.tries + 1))

    def _close(self, part: Part) -> None:
        self._open.discard(part)
        part.close()


# -- parts --------------------------------------------------------------------------------------


def part_of(fetching: Fetching, file: ListedFile) -> PartFolder:
    """Where the file's part lies: the same for all who want the same file."""
    fill = fetching.fill
    known = identity(fill.source, file) or f"{fill.name}/{file.path}"
    return PartFolder(fill.cache.part(part_id(known)))


def open_part(fetching: Fetching, file: ListedFile) -> Part | None:
    """The file's part, ours alone; None when somebody finished it since we looked. Busy."""
    told = bool(file.sha256 or file.git_sha1 or file.md5)
    part = Part(part_of(fetching, file), file.size or 0, checked=told)
    if fetching.fill.link_known(file):
        part.remove()
        part.close()
        fetching.meter.here(part.size, files=1)
        return None
    return part


def settle_part(fetching: Fetching, file: ListedFile, part: Part, found: dict[str, str]) -> str:
    """A whole part becomes a blob of that digest; else why not, and it is empty again."""
    fault = find_fault(fetching, file, part.size, found)
    if fault:
        fetching.origins.distrust(file)
        part.forget()
        fetching.meter.undo(part.size)
        return fault
    sha256 = found["sha256"]
    if fetching.origins.source.pins:  # else only when all of it is known to be still the same
        fetching.fill.remember({file.path: (sha256, part.size)})  # first: or a blob is lost
    fetching.fill.settle(file, part.seal(), sha256, part.size)
    part.remove()
    fetching.meter.finished()
    return ""


def bring_own_way(fetching: Fetching, waiting: deque[ListedFile], rest: list[ListedFile]) -> bool:
    """The next file by its source's own way; into `rest` if it has none for it."""
    try:
        file = waiting.popleft()
    except IndexError:
        return False
    try:
        part = open_part(fetching, file)
    except Busy:
        rest.append(file)
        return True
    if part is None:
        return True
    try:
        if part.arrived or not _fetched(fetching, file, part):
            rest.append(file)
            return True
        following = Following(part, digests_for(file, part.size), fetching.stop.is_set)
        fault = settle_part(fetching, file, part, following.result())
        if fault:
            fetching.meter.note(f"{file.path} arrived damaged: {fault}")
            rest.append(file)
        return True
    finally:
        part.close()


def _fetched(fetching: Fetching, file: ListedFile, part: Part) -> bool:
    whole = part.folder.path / "whole"

    def tick(size: int) -> None:
        check_stop(fetching)  # what it raises ends the fetch
        fetching.meter.moved(size)

    try:
        done = fetching.origins.fetch(file, whole, tick)
    except Interrupted as error:
        fetching.meter.note(error.what)
        done = False
    if whole.exists():
        part.begin_with(whole)
    return done
