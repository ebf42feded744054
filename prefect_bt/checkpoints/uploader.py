"""Watch one rank's checkpoint directory and commit what is settled and whole.

    scan (names and stat) -> settled? -> whole? -> hash and send -> unchanged since? -> manifest

The manifest is written last, create-only, in the attempt's own name; before it nobody sees a thing,
and after a kill at any point the objects already stored are not sent again. A store fault is tried
again here and only here (an adapter repeats single requests): with growing pauses for as long as
the training runs, and in the final flush until nothing has moved for `patience` seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed import Committed
from prefect_bt.checkpoints.judging import Judge
from prefect_bt.checkpoints.layout import Found, Kind, checkpoints_in
from prefect_bt.checkpoints.manifest import FORMAT, Entry, Manifest, Origin
from prefect_bt.checkpoints.progress import Progress
from prefect_bt.checkpoints.scanning import scan
from prefect_bt.checkpoints.settling import Settling
from prefect_bt.checkpoints.transfer import Digests, Workshop, transfer
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Store
from prefect_bt.records import UploadStatus

CHANGING: Final = "it is still being written"
_LONGEST_PAUSE: Final = 30.0
_ROUNDS: Final = 10
"""How often the final flush looks again at what changes or cannot be read."""


_Left = dict[str, str]
_Failures = dict[str, StoreError | CheckpointError]


@dataclass(frozen=True)
class UploadOptions:
    """Times in seconds."""

    settle: float = 5.0
    scan: float = 1.0
    patience: float = 120.0
    """How long the final flush goes on without progress."""
    again: float = 60.0
    """Least time between two versions of a folder that is no model (logs, event files)."""
    workers: int = 3


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
        self._store, self._directory, self._origin = store, directory, origin
        self._options = options
        self._progress = Progress(report)
        self._settling = Settling(options.settle)
        self._judge = Judge(directory)
        self._digests = Digests()
        self._committed: Committed | None = None
        self._done: dict[str, Found] = {}
        self._not_before: dict[str, float] = {}

    def run(self, ending: threading.Event) -> UploadStatus:
        """Commit until `ending` is set, then flush: everything whole, settled or not.

        Never raises for what the directory or the store does; the returned status (also reported)
        tells what was left behind and why, and has `error` set when something could not be stored.
        """
        with ThreadPoolExecutor(self._options.workers, thread_name_prefix="upload") as pool:
            self._progress.change()
            pause = self._options.scan
            while not ending.is_set():
                began = time.monotonic()
                _, failures = self._pass(pool, final=False)
                # A large directory must not be looked at all the time.
                least = max(self._options.scan, 5 * (time.monotonic() - began))
                pause = min(max(pause * 2, least), _LONGEST_PAUSE) if failures else least
                ending.wait(min(pause, _LONGEST_PAUSE))
            return self._flush(pool)

    def _flush(self, pool: ThreadPoolExecutor) -> UploadStatus:
        deadline, moved, pause, rounds = 0.0, -1, 0.1, 0
        while True:
            left, failures = self._pass(pool, final=True)
            now, rounds = time.monotonic(), rounds + 1
            if self._moved() > moved:
                deadline, moved = now + self._options.patience, self._moved()
            again = rounds < _ROUNDS and (bool(failures) or CHANGING in left.values())
            if any(isinstance(error, StoreError) for error in failures.values()):
                again = now < deadline
            if not again:
                break
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
        errors = {
            name: f"Rank {self._origin.rank}, checkpoint {name}: {error}"
            for name, error in failures.items()
        }
        why = left | {name: error.what for name, error in failures.items()}
        return self._progress.change(
            flushed=True,
            uncommitted=tuple(f"{name}: {reason}" for name, reason in sorted(why.items())),
            error="; ".join(errors.values()),
        )

    def _moved(self) -> int:
        return self._committed.count if self._committed else 0

    def _pass(self, pool: ThreadPoolExecutor, *, final: bool) -> tuple[_Left, _Failures]:
        """Look once. Returns name -> why it is not committed, and name -> what went wrong."""
        left: _Left = {}
        failures: _Failures = {}
        try:
            files = scan(self._directory)
        except OSError as error:
            what = f"{self._directory} cannot be read: {error.strerror}."
            return left, {".": CheckpointError(what, rank=self._origin.rank, cause=str(error))}
        self._digests.keep_only(files)
        self._judge.keep_only(files)
        found = checkpoints_in(files)
        quiet = self._settling.observe(found, now=time.monotonic())
        for name in sorted(found if final else quiet, key=lambda name: found[name].written_ns):
            if not final and self._may_wait(found[name]):
                continue
            try:
                why = self._take_up(found[name], pool)
            except (StoreError, CheckpointError) as error:
                failures[name] = error
                continue
            if why:
                left[name] = why
            if why == CHANGING:
                self._settling.forget(name)
            else:
                self._done[name] = found[name]
        return left, failures

    def _may_wait(self, found: Found) -> bool:
        if self._done.get(found.name) == found:
            return True
        return time.monotonic() < self._not_before.get(found.name, 0.0)

    def _take_up(self, found: Found, pool: ThreadPoolExecutor) -> str:
        """Commit one checkpoint; returns why not, empty when the store has it."""
        if self._committed is None:
            self._committed = Committed(self._store, self._origin)
        if found.files and self._is_known(found, self._committed):
            return ""
        fault = self._fault(found, self._committed)
        if fault:
            return fault
        before, began = self._progress.status, time.monotonic()
        self._progress.begin(found.size)
        shop = Workshop(
            store=self._store,
            origin=self._origin,
            directory=self._directory,
            pool=pool,
            digests=self._digests,
            committed=self._committed,
            tick=self._progress.tick,
        )
        finished = False
        try:
            entries = transfer(shop, found)
            kind = self._kind(found) if entries is not None else None
            if entries is None or kind is None or not self._is_still(found):
                return CHANGING
            is_new = self._commit(found, entries, kind)
            finished = True
        finally:
            if not finished:
                self._progress.rewind(before)
        if is_new:
            seconds = max(time.monotonic() - began, 1e-3)
            lag = time.time() - found.changed_ns / 1e9
            self._progress.committed(found.name, lag=lag, rate=found.size / seconds)
        return ""

    def _is_known(self, found: Found, committed: Committed) -> bool:
        """By times for what an earlier uploader committed, exactly for what this one saw."""
        seen = self._done.get(found.name)
        return committed.holds(found) and (seen is None or _within(found, seen))

    def _fault(self, found: Found, committed: Committed) -> str:
        try:
            return self._judge.fault(found, committed.examples(found.name))
        except (FileNotFoundError, NotADirectoryError):
            return CHANGING
        except OSError as error:
            raise CheckpointError(
                f"a file cannot be read: {error}", rank=self._origin.rank, cause=str(error)
            ) from error

    def _is_still(self, found: Found) -> bool:
        return checkpoints_in(scan(self._directory)).get(found.name) == found

    def _kind(self, found: Found) -> Kind | None:
        try:
            return self._judge.kind(found)
        except OSError:
            return None

    def _commit(self, found: Found, entries: tuple[Entry, ...], kind: Kind) -> bool:
        """False when the newest commit says all of it already."""
        committed, origin = self._committed, self._origin
        assert committed is not None
        content = {entry.path: entry.sha256 for entry in entries}
        if committed.holds_content(found.name, content):
            return False
        committed.commit(
            Manifest(
                format=FORMAT,
                project_id=origin.project_id,
                job_id=origin.job_id,
                rank=origin.rank,
                group_size=origin.group_size,
                name=found.name,
                attempt=origin.attempt,
                version=1,
                committed_at=time.time(),
                size=sum(entry.size for entry in entries),
                entries=entries,
                type=kind.type,
                base_model=kind.base_model,
                lora_adapter_config=kind.lora_adapter_config,
                step=kind.step,
            )
        )
        if not kind.type and kind.step is None:
            self._not_before[found.name] = time.monotonic() + self._options.again
        return True


def _within(found: Found, seen: Found) -> bool:
    """Nothing new or changed since `seen`: at most files gone."""
    return found.files.items() <= seen.files.items()
