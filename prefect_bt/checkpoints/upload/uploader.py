"""Watch one rank's checkpoint directory and commit settled, complete checkpoints.

    scan (names and stat) -> settled? -> complete? -> hash and send -> unchanged since? -> manifest

The manifest is written last, create-only, in the attempt's own name; before it the checkpoint is
invisible, and after a kill at any point the stored objects are not sent again. Errors of the store
are retried here only (an adapter repeats single requests): with growing delays per checkpoint,
while the training runs, and in the final flush until there is no progress for `patience` seconds.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.formats.table import has_new_pointer
from prefect_bt.checkpoints.layout import LocalCheckpoint, is_log
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.commit import CHANGING, CheckpointCommitter, Uncommitted
from prefect_bt.checkpoints.upload.progress import UploadProgress
from prefect_bt.checkpoints.upload.retry_queue import RetrySchedule
from prefect_bt.checkpoints.upload.upload_status import format_uncommitted
from prefect_bt.checkpoints.volume_links import VolumeMounts, Volumes
from prefect_bt.checkpoints.watch.stability import StabilityTracker, has_new_state
from prefect_bt.checkpoints.watch.watcher import DirectoryWatcher
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.ledger.fencing_epochs import Superseded
from prefect_bt.ledger.records import RetentionPolicy, UploadStatus
from prefect_bt.object_store.protocols import Store

_MAX_WAIT: Final = 30.0
_STOP_POLL_INTERVAL: Final = 0.25
"""Interval of checks for a stop request."""
_MAX_FLUSH_ROUNDS: Final = 10
"""Scans of the final flush while files change or cannot be read."""
_MAX_FAILURES_IN_A_ROW: Final = 3
"""Failures of the store in a row, without a byte sent, after which no further checkpoint is tried.
"""

_Uncommitted = dict[str, Uncommitted]
_Failures = dict[str, StoreError | CheckpointError]


@dataclass(frozen=True)
class UploadOptions:
    """Times in seconds."""

    settle: float = 1.5
    scan: float = 1.0
    """Interval of scans without notifications of the kernel."""
    stall_timeout: float = 120.0
    """Seconds that the final flush continues without progress."""
    recommit_interval: float = 60.0
    """Least time between two versions of a folder in which no state changed (logs, results)."""
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    use_inotify: bool = True
    """Use the kernel's notifications of changes."""
    fence: Callable[[], object] = lambda: None
    """Function that raises Superseded once another machine commits the job's checkpoints."""
    mounts: VolumeMounts = ()
    """The node's volumes, which links may lead into."""


class Uploader:
    """One loop for one rank. `run` is called once, from one thread."""

    def __init__(
        self,
        store: Store,
        *,
        directory: Path,
        origin: UploadOrigin,
        options: UploadOptions,
        report: Callable[[UploadStatus], None],
    ) -> None:
        self._root, self._origin, self._options = directory, origin, options
        volumes = Volumes(directory, options.mounts)
        self._progress = UploadProgress(report)
        self._stability = StabilityTracker(options.settle)
        self._directory = DirectoryWatcher(
            volumes, poll_interval=options.scan, use_inotify=options.use_inotify
        )
        self._committer = CheckpointCommitter(
            store,
            volumes=volumes,
            origin=origin,
            is_unchanged=self._is_unchanged,
            progress=self._progress,
            retention=options.retention,
            fence=options.fence,
        )
        self._done: dict[str, LocalCheckpoint] = {}
        """Checkpoints to ignore until they change."""
        self._waiting: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        """Name -> time from which a version may be committed in which only logs changed."""
        self._retries = RetrySchedule(options.scan)
        self._is_committing, self._scanned_at = False, 0.0

    def run(
        self, stop: threading.Event, *, has_succeeded: Callable[[], bool] = lambda: True
    ) -> UploadStatus:
        """Commit until `stop` is set, then flush every complete checkpoint, settled or not.

        `has_succeeded`: whether the commands ended with 0, and with them every writer. Else a
        checkpoint that looks unfinished, and changed a short time ago, may be half a save.

        Raises nothing for errors of the directory or the store; the returned status (also reported)
        has the uncommitted checkpoints with reasons, and `error` if something could not be stored.
        """
        try:
            self._progress.update()
            while not stop.is_set():
                if not self._scan_once():
                    stop.wait(self._options.scan)
                elif not self._is_committing:
                    self._wait_for_change(stop)
            return self._flush(has_succeeded())
        except Superseded as error:
            return self._progress.update(flushed=True, waiting=(), error=str(error))
        finally:
            self._committer.close()
            self._directory.close()

    def _scan_once(self) -> bool:
        """Return whether the directory could be read."""
        try:
            found = self._directory.refresh()
        except OSError as error:
            self._report_problems({".": self._unreadable(error)})
            return False
        self._progress.update_present(found)
        now, spent = time.monotonic(), time.thread_time()
        self._scanned_at = now
        self._stability.observe(found, now=now)
        self._directory.throttle(time.thread_time() - spent)
        self._forget_removed(found)
        settled: dict[str, LocalCheckpoint] = {}
        quiet_seconds: dict[str, float] = {}
        for name, one in found.items():
            if self._may_commit(one, now=now):
                quiet = self._stability.decide(name, now=now, examine=self._committer.examine)
                if quiet is None:
                    continue
                if not quiet.decision.is_commit:
                    self._waiting[name] = quiet.decision.reason
                elif not self._is_handled(quiet.checkpoint, part=quiet.checkpoint is not one):
                    settled[name], quiet_seconds[name] = quiet.checkpoint, quiet.quiet
        # A commit scans, too, and takes the notifications: scan again without waiting for one.
        self._is_committing = bool(settled)
        self._commit_all(settled, quiet_seconds)
        self._report_problems(self._retries.errors)
        return True

    def _may_commit(self, one: LocalCheckpoint, *, now: float) -> bool:
        done = self._done.get(one.name)
        if done is one or not self._retries.is_due(one.name, now=now):
            return False
        # A retry resumes from the checkpoint that the committed pointer names.
        return (
            now >= self._not_before.get(one.name, 0.0)
            or has_new_state(one, since=done)
            or has_new_pointer(one.files, since=done.files if done is not None else {})
        )

    def _is_handled(self, stable: LocalCheckpoint, *, part: bool) -> bool:
        """Return whether the checkpoint was handled; a part without its logs is a new object."""
        done = self._done.get(stable.name)
        return part and done is not None and done.files == stable.files

    def _forget_removed(self, found: Mapping[str, LocalCheckpoint]) -> None:
        self._retries.retain(found)
        for memory in (self._waiting, self._not_before):
            for gone in memory.keys() - found.keys():
                del memory[gone]
        for gone in self._done.keys() - found.keys():
            # Without files: a new folder of this name is another checkpoint.
            self._done[gone] = LocalCheckpoint(gone)

    def _report_problems(self, failures: _Failures) -> None:
        self._progress.update_problems(
            self._waiting, {n: str(error) for n, error in failures.items()}
        )

    def _wait_for_change(self, ending: threading.Event) -> None:
        """Wait for a change, a due checkpoint or the end."""
        # Since the scan, not since now: what became due while files were read must not wait.
        began = self._scanned_at
        due = began + min(
            self._stability.seconds_until_due(now=began),
            self._retries.seconds_until_due(now=began),
            self._next_recommit(began),
            _MAX_WAIT,
        )
        while not ending.is_set():
            now = time.monotonic()
            if now >= due or self._directory.wait_for_change(min(_STOP_POLL_INTERVAL, due - now)):
                return

    def _next_recommit(self, now: float) -> float:
        """Return the seconds until a folder may be committed in its next version."""
        return min((at - now for at in self._not_before.values() if at > now), default=_MAX_WAIT)

    def _flush(self, succeeded: bool) -> UploadStatus:
        self._committer.raise_priority()
        deadline, moved, pause, rounds = 0.0, -1, 0.1, 0
        while True:
            left, failures = self._flush_once(succeeded)
            now, rounds = time.monotonic(), rounds + 1
            if self._committer.progress_counter > moved:
                deadline, moved = (
                    now + self._options.stall_timeout,
                    self._committer.progress_counter,
                )
            again = rounds < _MAX_FLUSH_ROUNDS and (
                bool(failures) or any(one.is_changing for one in left.values())
            )
            if any(isinstance(error, StoreError) for error in failures.values()):
                again = now < deadline
            if not again:
                break
            self._report_problems(failures)
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
        self._committer.abort_unfinished_uploads()
        errors = [
            f"Rank {self._origin.rank}, checkpoint {name}: {error}"
            for name, error in failures.items()
        ]
        why = {name: one.reason for name, one in left.items()}
        why |= {name: error.message for name, error in failures.items()}
        return self._progress.update(
            flushed=True,
            waiting=(),
            trouble="",
            uncommitted=format_uncommitted(why),
            error="; ".join(errors),
            store_failed=any(isinstance(error, StoreError) for error in failures.values()),
        )

    def _flush_once(self, succeeded: bool) -> tuple[_Uncommitted, _Failures]:
        try:
            checkpoints = self._directory.refresh(full=True)
        except OSError as error:
            return {}, {".": self._unreadable(error)}
        self._progress.update_present(checkpoints)
        now = time.monotonic()
        self._stability.observe(checkpoints, now=now)
        quiet_seconds = {
            name: float("inf") if succeeded else self._stability.quiet_seconds(name, now=now)
            for name in checkpoints
        }
        return self._commit_all(checkpoints, quiet_seconds)

    def _commit_all(
        self, checkpoints: Mapping[str, LocalCheckpoint], quiet_seconds: Mapping[str, float]
    ) -> tuple[_Uncommitted, _Failures]:
        """Return the reasons of uncommitted checkpoints and the errors, both by name."""
        left: _Uncommitted = {}
        failures: _Failures = {}
        if checkpoints and self._directory.has_removed_files():
            self._committer.retain(self._directory.files)
        refused, spared = 0, None
        for name, found in sorted(checkpoints.items(), key=self._commit_order):
            if spared is not None:
                failures[name] = spared
                self._retries.record_failure(name, spared, now=time.monotonic(), counted=False)
                continue
            before = self._committer.progress_counter
            self._progress.add_work()
            why, error = self._try_commit(found, quiet_seconds[name])
            if error is not None:
                failures[name] = error
                self._retries.record_failure(name, error, now=time.monotonic())
                is_stuck = (
                    isinstance(error, StoreError) and self._committer.progress_counter == before
                )
                refused = refused + 1 if is_stuck else 0
                spared = error if refused >= _MAX_FAILURES_IN_A_ROW else None
                continue
            refused = 0
            self._retries.record_success(name)
            self._waiting.pop(name, None)
            if why is not None:
                left[name], self._waiting[name] = why, why.reason
                if why.is_changing:
                    self._stability.reset(name)
            else:
                self._done[name] = found
        return left, failures

    def _commit_order(self, item: tuple[str, LocalCheckpoint]) -> tuple[int, int]:
        """Return the checkpoints oldest first, failed ones last."""
        name, found = item
        return self._retries.failure_count(name), found.mtime_ns

    def _try_commit(
        self, found: LocalCheckpoint, quiet: float
    ) -> tuple[Uncommitted | None, StoreError | CheckpointError | None]:
        """Try to commit. Return (reason, None) if not possible now, (None, error) if it failed."""
        try:
            return self._commit_isolated(found, quiet), None
        except (StoreError, CheckpointError) as error:
            return None, error

    def _commit_isolated(self, found: LocalCheckpoint, quiet: float) -> Uncommitted | None:
        """Commit one checkpoint; an unexpected error in it affects no other."""
        try:
            return self._commit(found, quiet)
        except (StoreError, CheckpointError, Superseded):
            raise
        except Exception as error:
            traceback.print_exc()
            what = f"it cannot be uploaded: {type(error).__name__}: {error}"
            raise CheckpointError(what, rank=self._origin.rank, cause=str(error)) from error

    def _commit(self, found: LocalCheckpoint, quiet: float) -> Uncommitted | None:
        if not self._directory.is_unchanged(found):
            return CHANGING
        previous = self._done.get(found.name)
        result = self._committer.commit(found, previous=previous, quiet=quiet)
        if isinstance(result, Uncommitted):
            return result
        if result is not None:
            self._retries.reset_delays()
        is_part = found is not self._directory.checkpoints.get(found.name)
        is_model = result is None or bool(result.type) or result.step is not None
        if is_part or not is_model:
            self._not_before[found.name] = time.monotonic() + self._options.recommit_interval
        return None

    def _is_unchanged(self, found: LocalCheckpoint) -> bool:
        """Return whether no file changed and only logs were added."""
        if not self._directory.is_unchanged(found):
            return False
        now = self._directory.refresh().get(found.name)
        if now is None or now.temporary_files != found.temporary_files:
            return False
        return all(is_log(path) for path in now.files.keys() - found.files.keys())

    def _unreadable(self, error: OSError) -> CheckpointError:
        what = f"{self._root} cannot be read: {error.strerror}."
        return CheckpointError(what, rank=self._origin.rank, cause=str(error))
