"""Watch one rank's checkpoint directory and commit what is settled and whole.

    look (names and stat) -> settled? -> whole? -> hash and send -> unchanged since? -> manifest

The manifest is written last, create-only, in the attempt's own name; before it nobody sees a thing,
and after a kill at any point the objects already stored are not sent again. A store fault is tried
again here and only here (an adapter repeats single requests): with growing pauses, of each
checkpoint's own, for as long as the training runs, and in the final flush until nothing has moved
for `patience` seconds.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.layout import Found
from prefect_bt.checkpoints.manifest import Origin
from prefect_bt.checkpoints.progress import Progress
from prefect_bt.checkpoints.retrying import Retries
from prefect_bt.checkpoints.settling import Settling, has_new_state, is_log
from prefect_bt.checkpoints.taking import CHANGING, Taker
from prefect_bt.checkpoints.volumes import Targets, Volumes
from prefect_bt.checkpoints.watching import Directory
from prefect_bt.epochs import Superseded
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Store
from prefect_bt.records import Retention, UploadStatus

_LONGEST_PAUSE: Final = 30.0
_AWAKE: Final = 0.25
"""How often the loop sees whether the end was asked for."""
_ROUNDS: Final = 10
"""How often the final flush looks again at what changes or cannot be read."""
_ENOUGH: Final = 3
"""Checkpoints in a row that the store refuses before the others are spared the waiting."""

_Left = dict[str, str]
_Failures = dict[str, StoreError | CheckpointError]


@dataclass(frozen=True)
class UploadOptions:
    """Times in seconds."""

    settle: float = 1.5
    scan: float = 1.0
    """Pause between two looks where the kernel does not tell what changed."""
    patience: float = 120.0
    """How long the final flush goes on without progress."""
    again: float = 60.0
    """Least time between two versions of a folder in which no state changed (logs, results)."""
    retention: Retention = field(default_factory=Retention)
    hints: bool = True
    """Let the kernel tell where something changed."""
    fence: Callable[[], object] = lambda: None
    """Function that raises Superseded once another machine commits the job's checkpoints."""
    targets: Targets = ()
    """The node's volumes, which links may lead into."""


class Uploader:
    """One loop for one rank. `run` is called once, from one thread."""

    def __init__(
        self,
        store: Store,
        *,
        directory: Path,
        origin: Origin,
        options: UploadOptions,
        report: Callable[[UploadStatus], None],
    ) -> None:
        self._root, self._origin, self._options = directory, origin, options
        volumes = Volumes(directory, options.targets)
        self._progress = Progress(report)
        self._settling = Settling(options.settle)
        self._directory = Directory(volumes, poll=options.scan, hints=options.hints)
        self._taker = Taker(
            store,
            volumes=volumes,
            origin=origin,
            still=self._is_still,
            progress=self._progress,
            retention=options.retention,
            fence=options.fence,
        )
        self._done: dict[str, Found] = {}
        """What needs no look before it changes: committed, or judged not to be whole."""
        self._waiting: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        """When the next version may be taken where only logs and the like have changed."""
        self._retries = Retries(options.scan)
        self._looked_aside, self._looked_at = False, 0.0

    def run(self, ending: threading.Event) -> UploadStatus:
        """Commit until `ending` is set, then flush: everything whole, settled or not.

        Never raises for what the directory or the store does; the returned status (also reported)
        tells what was left behind and why, and has `error` set when something could not be stored.
        """
        try:
            self._progress.change()
            while not ending.is_set():
                if not self._look_once():
                    ending.wait(self._options.scan)
                elif not self._looked_aside:
                    self._rest(ending)
            return self._flush()
        except Superseded as error:
            return self._progress.change(flushed=True, waiting=(), error=str(error))
        finally:
            self._taker.close()
            self._directory.close()

    def _look_once(self) -> bool:
        """Whether the directory could be read."""
        try:
            found = self._directory.look()
        except OSError as error:
            self._tell({".": self._unreadable(error)})
            return False
        now, spent = time.monotonic(), time.thread_time()
        self._looked_at = now
        self._settling.observe(found, now=now)
        self._directory.rest(time.thread_time() - spent)
        self._forget_gone(found)
        quiet: dict[str, Found] = {}
        for name, one in found.items():
            if self._may_take(one, now=now):
                taken = self._settling.settled(name, now=now, ask=self._taker.ask(one))
                if taken is not None and not self._is_done(taken, part=taken is not one):
                    quiet[name] = taken
        # Taking looks for itself, so what happened meanwhile will not be told again.
        self._looked_aside = bool(quiet)
        self._take_all(quiet)
        self._tell(self._retries.errors)
        return True

    def _may_take(self, one: Found, *, now: float) -> bool:
        done = self._done.get(one.name)
        if done is one or not self._retries.may(one.name, now=now):
            return False
        return now >= self._not_before.get(one.name, 0.0) or has_new_state(one, since=done)

    def _is_done(self, taken: Found, *, part: bool) -> bool:
        """A part, without its logs, is never the same object."""
        done = self._done.get(taken.name)
        return part and done is not None and done.files == taken.files

    def _forget_gone(self, found: Mapping[str, Found]) -> None:
        self._retries.keep_only(found)
        for memory in (self._waiting, self._not_before):
            for gone in memory.keys() - found.keys():
                del memory[gone]
        for gone in self._done.keys() - found.keys():
            # Without files: what comes back under the name is not what was seen, and is read.
            self._done[gone] = Found(gone)

    def _tell(self, failures: _Failures) -> None:
        self._progress.trouble(self._waiting, {n: str(error) for n, error in failures.items()})

    def _rest(self, ending: threading.Event) -> None:
        """Until something happens or is due, or the end is near."""
        # Not from now: what came due while many files were looked into would be passed over.
        began = self._looked_at
        due = began + min(
            self._settling.next_due(now=began),
            self._retries.next_due(now=began),
            self._later(began),
            _LONGEST_PAUSE,
        )
        while not ending.is_set():
            now = time.monotonic()
            if now >= due or self._directory.wait(min(_AWAKE, due - now)):
                return

    def _later(self, now: float) -> float:
        """Seconds until a folder that must wait for its next version may be taken."""
        return min(
            (at - now for at in self._not_before.values() if at > now), default=_LONGEST_PAUSE
        )

    def _flush(self) -> UploadStatus:
        self._taker.hurry()
        deadline, moved, pause, rounds = 0.0, -1, 0.1, 0
        while True:
            left, failures = self._flush_once()
            now, rounds = time.monotonic(), rounds + 1
            if self._taker.moved > moved:
                deadline, moved = now + self._options.patience, self._taker.moved
            again = rounds < _ROUNDS and (bool(failures) or CHANGING in left.values())
            if any(isinstance(error, StoreError) for error in failures.values()):
                again = now < deadline
            if not again:
                break
            self._tell(failures)
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
        self._taker.abort_rest()
        errors = [
            f"Rank {self._origin.rank}, checkpoint {name}: {error}"
            for name, error in failures.items()
        ]
        why = left | {name: error.what for name, error in failures.items()}
        return self._progress.change(
            flushed=True,
            waiting=(),
            trouble="",
            uncommitted=tuple(f"{name}: {reason}" for name, reason in sorted(why.items())),
            error="; ".join(errors),
        )

    def _flush_once(self) -> tuple[_Left, _Failures]:
        try:
            return self._take_all(self._directory.look(everything=True))
        except OSError as error:
            return {}, {".": self._unreadable(error)}

    def _take_all(self, wanted: Mapping[str, Found]) -> tuple[_Left, _Failures]:
        """Returns name -> why it is not committed, and name -> what went wrong."""
        left: _Left = {}
        failures: _Failures = {}
        if wanted and self._directory.lost_files():
            self._taker.keep_only(self._directory.files)
        refused, spared = 0, None
        for name, found in sorted(wanted.items(), key=self._in_turn):
            if spared is not None:
                failures[name] = spared
                self._retries.failed(name, spared, now=time.monotonic(), tried=False)
                continue
            before = self._taker.moved
            self._progress.worked()
            why, error = self._try(found)
            if error is not None:
                failures[name] = error
                self._retries.failed(name, error, now=time.monotonic())
                is_stuck = isinstance(error, StoreError) and self._taker.moved == before
                refused = refused + 1 if is_stuck else 0
                spared = error if refused >= _ENOUGH else None
                continue
            refused = 0
            self._retries.succeeded(name)
            self._waiting.pop(name, None)
            if why:
                left[name] = self._waiting[name] = why
            if why == CHANGING:
                self._settling.forget(name)
            else:
                self._done[name] = found
        return left, failures

    def _in_turn(self, item: tuple[str, Found]) -> tuple[int, int]:
        """Oldest first; what failed lets the others pass."""
        name, found = item
        return self._retries.tries(name), found.written_ns

    def _try(self, found: Found) -> tuple[str, StoreError | CheckpointError | None]:
        """Why it is not committed, and what went wrong."""
        try:
            return self._named(found), None
        except (StoreError, CheckpointError) as error:
            return "", error

    def _named(self, found: Found) -> str:
        """What is odd about one checkpoint is a fault of that one, and costs no other."""
        try:
            return self._take(found)
        except (StoreError, CheckpointError, Superseded):
            raise
        except Exception as error:
            traceback.print_exc()
            what = f"it cannot be taken: {type(error).__name__}: {error}"
            raise CheckpointError(what, rank=self._origin.rank, cause=str(error)) from error

    def _take(self, found: Found) -> str:
        if not self._directory.confirm(found):
            return CHANGING
        why, version = self._taker.take(found, seen=self._done.get(found.name))
        if version is not None:
            self._retries.hurry()
        is_part = found is not self._directory.found.get(found.name)
        is_model = version is None or bool(version.type) or version.step is not None
        if not why and (is_part or not is_model):
            self._not_before[found.name] = time.monotonic() + self._options.again
        return why

    def _is_still(self, found: Found) -> bool:
        """Nothing of it changed, and nothing came to it but logs."""
        if not self._directory.confirm(found):
            return False
        now = self._directory.look().get(found.name)
        if now is None or now.unfinished != found.unfinished:
            return False
        return all(is_log(path) for path in now.files.keys() - found.files.keys())

    def _unreadable(self, error: OSError) -> CheckpointError:
        what = f"{self._root} cannot be read: {error.strerror}."
        return CheckpointError(what, rank=self._origin.rank, cause=str(error))
