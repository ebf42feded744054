"""Watch one rank's checkpoint directory and commit what is settled and whole.

    look (names and stat) -> settled? -> whole? -> hash and send -> unchanged since? -> manifest

The manifest is written last, create-only, in the attempt's own name; before it nobody sees a thing,
and after a kill at any point the objects already stored are not sent again. A store fault is tried
again here and only here (an adapter repeats single requests): with growing pauses for as long as
the training runs, and in the final flush until nothing has moved for `patience` seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.layout import Found
from prefect_bt.checkpoints.manifest import Origin
from prefect_bt.checkpoints.progress import Progress
from prefect_bt.checkpoints.settling import Settling, is_log
from prefect_bt.checkpoints.taking import CHANGING, Taker
from prefect_bt.checkpoints.watching import Directory
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Store
from prefect_bt.records import Retention, UploadStatus

_LONGEST_PAUSE: Final = 30.0
_AWAKE: Final = 0.25
"""How often the loop sees whether the end was asked for."""
_ROUNDS: Final = 10
"""How often the final flush looks again at what changes or cannot be read."""


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
    """Least time between two versions of a folder that is no model (logs, event files)."""
    retention: Retention = field(default_factory=Retention)
    hints: bool = True
    """Let the kernel tell where something changed."""


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
        self._progress = Progress(report)
        self._settling = Settling(options.settle)
        self._directory = Directory(directory, poll=options.scan, hints=options.hints)
        self._taker = Taker(
            store,
            root=directory,
            origin=origin,
            still=self._is_still,
            progress=self._progress,
            retention=options.retention,
        )
        self._done: dict[str, Found] = {}
        """What needs no look before it changes: committed, or judged not to be whole."""
        self._waiting: dict[str, str] = {}
        self._not_before: dict[str, float] = {}

    def run(self, ending: threading.Event) -> UploadStatus:
        """Commit until `ending` is set, then flush: everything whole, settled or not.

        Never raises for what the directory or the store does; the returned status (also reported)
        tells what was left behind and why, and has `error` set when something could not be stored.
        """
        try:
            self._progress.change()
            pause = 0.0
            while not ending.is_set():
                failures = self._look_once()
                pause = min(max(2 * pause, self._options.scan), _LONGEST_PAUSE) if failures else 0.0
                self._rest(ending, pause)
            return self._flush()
        finally:
            self._taker.close()
            self._directory.close()

    def _look_once(self) -> _Failures:
        try:
            found = self._directory.look()
        except OSError as error:
            return self._tell({".": self._unreadable(error)})
        now, spent = time.monotonic(), time.thread_time()
        self._settling.observe(found, now=now)
        self._directory.rest(self._directory.cost + time.thread_time() - spent)
        quiet: dict[str, Found] = {}
        for name, one in found.items():
            if self._done.get(name) is one or now < self._not_before.get(name, 0.0):
                continue
            taken = self._settling.settled(name, now=now, ask=self._taker.ask(one))
            if taken is not None:
                quiet[name] = taken
        for gone in self._waiting.keys() - found.keys():
            del self._waiting[gone]
        return self._tell(self._take_all(quiet)[1])

    def _tell(self, failures: _Failures) -> _Failures:
        self._progress.trouble(self._waiting, {n: str(error) for n, error in failures.items()})
        return failures

    def _rest(self, ending: threading.Event, pause: float) -> None:
        """Until something happens or is due, or the end is near; after a fault, for `pause`."""
        if pause:
            ending.wait(pause)
            return
        began = time.monotonic()
        due = began + min(self._settling.next_due(now=began), self._later(began), _LONGEST_PAUSE)
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
        for name, found in sorted(wanted.items(), key=lambda item: item[1].written_ns):
            try:
                why = self._take(found)
            except (StoreError, CheckpointError) as error:
                failures[name] = error
                continue
            self._waiting.pop(name, None)
            if why:
                left[name] = self._waiting[name] = why
            if why == CHANGING:
                self._settling.forget(name)
            else:
                self._done[name] = found
        return left, failures

    def _take(self, found: Found) -> str:
        if not self._directory.confirm(found):
            return CHANGING
        why, version = self._taker.take(found, seen=self._done.get(found.name))
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
