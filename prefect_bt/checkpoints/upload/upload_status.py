"""Status of the uploaders in the store, where every machine can read it.

    attempts/<n>/uploads/rank-<r>.json    records.UploadStatus, replaced every few seconds of work

For display, and for what a restore need not bring back (`present`). All other decisions depend on
manifests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from prefect_bt import codec
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.errors import StoreError
from prefect_bt.ledger.records import UploadRepeat, UploadStatus
from prefect_bt.object_keys import uploads_prefix
from prefect_bt.object_store.protocols import Store
from prefect_bt.text.progress import Progress

PUBLISH_INTERVAL: Final = 5.0
"""Seconds between two updates of one rank during a transfer."""
_CLOSE_TIMEOUT: Final = 10.0
"""Seconds that an ending process waits for its last update to arrive."""


class StatusPublisher:
    """Writes the newest status to the store in a thread: a slow store blocks no caller.

    `publish` may be called at any rate; an unchanged status is not sent.
    """

    def __init__(
        self, store: Store, origin: UploadOrigin, *, interval: float = PUBLISH_INTERVAL
    ) -> None:
        folder = uploads_prefix(origin.project_id, origin.job_id, origin.attempt)
        self._store, self._key, self._every = store, f"{folder}/rank-{origin.rank}.json", interval
        self._changed, self._status = threading.Condition(), UploadStatus(updated_at=0)
        self._is_unsent = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="upload-status", daemon=True)
        self._thread.start()

    def publish(self, status: UploadStatus) -> None:
        with self._changed:
            self._is_unsent = self._is_unsent or status != self._status
            self._status = status
            self._changed.notify()

    def close(self) -> None:
        """Wait a short time for the last update to arrive."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_unsent or self._is_closed)
                if not self._is_unsent:
                    return
                status, self._is_unsent = self._status, False
            with suppress(StoreError):
                self._store.put(self._key, codec.dumps(status).encode(errors="backslashreplace"))
            self._wait_interval(status)

    def _wait_interval(self, sent: UploadStatus) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_urgent(sent), self._every)

    def _is_urgent(self, sent: UploadStatus) -> bool:
        """Return whether to send at once: a commit or an error, but not progress."""
        return self._is_unsent and (self._status.committed, self._status.trouble) != (
            sent.committed,
            sent.trouble,
        )


@dataclass(frozen=True)
class RankUpload:
    """`updated_at` in epoch seconds by the store's clock."""

    rank: int
    updated_at: float
    status: UploadStatus

    @property
    def progress(self) -> Progress:
        status = self.status
        return Progress(
            status.current,
            bytes_done=status.bytes_done,
            bytes_total=status.bytes_total,
            rate=status.rate if status.current else 0.0,
        )


class UploadStatusReader:
    """The newest statuses of one attempt's uploaders; reads only those that were replaced."""

    def __init__(self, store: Store, project_id: str, job_id: str, attempt: int) -> None:
        self._store, self._prefix = store, uploads_prefix(project_id, job_id, attempt)
        self._known: dict[str, RankUpload] = {}

    def read(self) -> list[RankUpload]:
        """Return the status by rank. Raise StoreError."""
        for info in self._store.list(self._prefix):
            known = self._known.get(info.key)
            if (
                known is None
                or known.updated_at != info.modified
                or time.time() - info.modified < 2
            ):
                self._known |= dict(self._read(info.key, info.modified))
        return sorted(self._known.values(), key=lambda one: one.rank)

    def _read(self, key: str, modified: float) -> Iterator[tuple[str, RankUpload]]:
        # A record of another release, or one deleted meanwhile, is left out.
        with suppress(StoreError, ValueError, TypeError, KeyError):
            rank = int(key.rpartition("/rank-")[2].removesuffix(".json"))
            status = codec.loads(UploadStatus, self._store.get(key))
            yield key, RankUpload(rank, modified, status)


def plan_repeat(
    status: UploadStatus, *, failed_tries: int, delays: Sequence[float]
) -> UploadRepeat | None:
    """Return the repeat after a failed final flush; None if it succeeded or is not repeated.

    `delays`: seconds before each repeat. What is wrong with a checkpoint itself most likely stays
    wrong: only a failure of the store is repeated more than once.
    """
    most = len(delays) if status.store_failed else min(1, len(delays))
    if not status.error or failed_tries >= most:
        return None
    return UploadRepeat(delays[failed_tries], failed_tries + 2, most + 1)


def format_trouble(status: UploadStatus) -> str:
    """Return which error is tried again: `upload failed, is repeated in 30 s (2 of 4): …`."""
    repeat = status.repeat
    if repeat is None:
        return f"upload failed, tried again: {status.trouble}" if status.trouble else ""
    when = f"in {repeat.delay:g} s ({repeat.number} of {repeat.total})"
    return f"upload failed, is repeated {when}: {status.error}"


def escape_surrogates(text: str) -> str:
    """Escape the bytes of a file name that are not UTF-8, as in `\\udcff`, as a status has them."""
    return text.encode("utf-8", "backslashreplace").decode()


def format_uncommitted(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Render name -> reason as `UploadStatus.waiting` and `uncommitted` hold it."""
    return tuple(f"{name}: {reason}" for name, reason in sorted(reasons.items()))


def find_uncommitted_reason(entries: Iterable[str], name: str) -> str | None:
    """Return the reason of the checkpoint `name` in what `format_uncommitted` rendered."""
    prefix = f"{name}: "
    return next((one.removeprefix(prefix) for one in entries if one.startswith(prefix)), None)
