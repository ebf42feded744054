"""Large files in runs of blocks: several connections share one file, and pass on to the next.

A request is for a run of blocks, since each one costs a server more than its bytes: as few as keep
every connection at work. Of each file the first block that is missing is the next to be asked for,
and connections go to the file that has the fewest: so most bytes come in order, and their digest is
taken from memory.
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
from prefect_bt.weights.parts import BLOCK, Busy, Part, PartFolder, part_id
from prefect_bt.weights.retrying import PAUSES, again
from prefect_bt.weights.source import Interrupted, NoRanges

FILES_AT_ONCE: Final = 8
RUN: Final = 8
"""Blocks that are asked for at once, at most: a slow connection keeps no more to itself."""
PROGRESS: Final = 1 << 20
"""Bytes after which a try counts as one that went well."""
_LOOK: Final = 0.2
"""Seconds between two looks at a file that another process fetches."""


class _Arriving:
    """One file, its blocks that nobody has taken yet, and how many are not back."""

    def __init__(
        self, fetching: Fetching, file: ListedFile, part: Part, tries: int, most: int
    ) -> None:
        """`most`: blocks that one request is for."""
        self.file, self.part, self.tries = file, part, tries
        self.todo = deque(part.missing())
        self.left = len(self.todo)
        self._run = _even(len(self.todo), most)
        self.hands = 0
        """Connections that work on it."""
        digests = digests_for(file, part.size)
        self.following = Following(part, digests, fetching.stop.is_set)

    def take(self) -> range:
        """The next run of blocks; empty where all of it was here, but for its digest.

        Only its first block may have begun to arrive: one request brings the rest of it.
        """
        if not self.todo:
            return range(0)
        first = self.todo.popleft()
        end = first + 1
        while self.todo and self.todo[0] == end and end - first < self._run:
            if self.part.done[end]:
                break
            end += 1
            self.todo.popleft()
        return range(first, end)


class Blocks:
    def __init__(self, fetching: Fetching, files: Sequence[ListedFile], hands: int) -> None:
        self._fetching = fetching
        self._waiting = deque((file, 0) for file in files)
        self._busy: list[ListedFile] = []
        self._arriving: list[_Arriving] = []
        """Files with blocks that nobody has taken yet."""
        self._open: set[Part] = set()
        self._lock = threading.Lock()
        blocks = sum(-(-(file.size or 0) // BLOCK) for file in files)
        self._most = min(RUN, max(1, -(-blocks // hands)))
        self._hands = hands

    def run(self) -> None:
        """Until every file is in the fill. WeightsError, OSError."""
        try:
            while self._waiting:
                work(self._hands, self._take, self._fetching.stop)
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
        arriving, run = found
        self._bring(arriving, run)
        if self._fetching.stop.is_set():
            return False
        with self._lock:
            arriving.hands -= 1
            arriving.left -= len(run)
            last = arriving.left == 0
        if last:
            self._finish(arriving)
        return True

    def _next(self) -> tuple[_Arriving, range] | None:
        while self._waiting and len(self._arriving) < FILES_AT_ONCE:
            begun = self._begin(*self._waiting.popleft())
            if begun is not None:
                self._arriving.append(begun)
        if not self._arriving:
            return None
        chosen = min(self._arriving, key=lambda one: one.hands)
        run = chosen.take()
        if not chosen.todo:
            self._arriving.remove(chosen)
        chosen.hands += 1
        return chosen, run

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
        return _Arriving(self._fetching, file, part, tries, self._most)

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

    # -- one run ------------------------------------------------------------------------------

    def _bring(self, arriving: _Arriving, run: range) -> None:
        fetching = self._fetching
        again(
            lambda: self._continue(arriving, run),
            PAUSES,
            fetching.stop,
            fetching.meter.note,
        )

    def _continue(self, arriving: _Arriving, run: range) -> None:
        """The rest of the run, once more for as long as each time brings much of it."""
        part = arriving.part
        while not self._fetching.stop.is_set():
            before = part.place(run)
            try:
                return self._read(arriving, run)
            except Interrupted as error:
                if part.place(run) - before < PROGRESS or error.after:
                    raise
        return None

    def _read(self, arriving: _Arriving, run: range) -> None:
        part, fetching = arriving.part, self._fetching
        at, end = part.place(run), part.end(run)
        if at == end:
            return
        for piece in fetching.origins.read(arriving.file, start=at, length=end - at):
            view = memoryview(piece)[: end - at]
            part.write(at, view)
            arriving.following.offer(at, view)
            fetching.meter.moved(len(view))
            at += len(view)
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


def _even(blocks: int, most: int) -> int:
    """Blocks a request, so that as few as `most` allows are of about the same size."""
    requests = max(1, -(-blocks // most))
    return -(-blocks // requests)


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
