"""Bring one settled checkpoint into the store: whole? -> hash and send -> still so? -> manifest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prefect_bt.checkpoints.committed import Committed
from prefect_bt.checkpoints.judging import Judge
from prefect_bt.checkpoints.layout import Found, Kind
from prefect_bt.checkpoints.manifest import FORMAT, Entry, Manifest, Origin, rank_prefix
from prefect_bt.checkpoints.processes import Place
from prefect_bt.checkpoints.progress import Progress
from prefect_bt.checkpoints.pruning import prune_rank
from prefect_bt.checkpoints.retention import expendable
from prefect_bt.checkpoints.settling import Questions
from prefect_bt.checkpoints.transfer import Digests, Lanes, Workshop, transfer
from prefect_bt.checkpoints.volumes import RecentFolders, Volumes
from prefect_bt.checkpoints.withdrawal import drop_outdated
from prefect_bt.errors import CheckpointError, StoreError
from prefect_bt.objects.protocols import Store
from prefect_bt.records import Retention

CHANGING: Final = "it is still being written"


class Taker:
    """For one rank, in one thread. Every verb raises StoreError and CheckpointError."""

    def __init__(  # noqa: PLR0913 (all of them are one uploader's)
        self,
        store: Store,
        *,
        volumes: Volumes,
        origin: Origin,
        still: Callable[[Found], bool],
        progress: Progress,
        retention: Retention,
        fence: Callable[[], object] = lambda: None,
    ) -> None:
        """Set up. `still`: whether a checkpoint is unchanged; `fence`: as in UploadOptions."""
        self._fence = fence
        self._store, self._volumes, self._origin = store, volumes, origin
        self._still, self._progress, self._retention = still, progress, retention
        place = Place(origin.rank, origin.group_size)
        self._judge = Judge(volumes, place=place, worked=progress.worked)
        self._digests, self._lanes = Digests(), Lanes()
        self._committed: Committed | None = None
        self._most: dict[str, int] = {}
        """Name -> the most bytes of it that were ever safe."""

    @property
    def moved(self) -> int:
        """Grows while anything new gets into the store; not when the same is sent again."""
        return (self._committed.count if self._committed else 0) + sum(self._most.values())

    def ask(self, found: Found) -> Questions:
        """What its files tell of their writer."""
        examples = self._committed.examples(found.name) if self._committed else []
        return _Asked(self._judge, found, examples)

    def take(self, found: Found, *, seen: Found | None) -> tuple[str, Manifest | None]:
        """Commit it; returns why not (empty when the store has it), and the manifest if it is new.

        `seen` is what this uploader took under that name before.
        """
        if self._committed is None:
            self._committed = self._begin()
        committed = self._committed
        if found.files and _is_known(found, committed, seen):
            return "", None
        if found.name in expendable([*committed.names, found.name], self._retention):
            return "", None
        fault = self._fault(found, committed)
        if fault:
            return fault, None
        self._progress.begin(found.name, found.size)
        shop, finished = self._workshop(committed), False
        try:
            entries = transfer(shop, found)
            kind = self._kind(found) if entries is not None else None
            if entries is None or kind is None or not self._still(found):
                return CHANGING, None
            manifest = self._commit(committed, found, entries, kind)
            finished = True
        finally:
            self._most[found.name] = max(self._most.get(found.name, 0), shop.meter.total)
            if not finished:
                self._progress.rewind()
        if manifest is None:
            self._progress.known(found.name)
            return "", None
        self._progress.committed(found.name, lag=time.time() - found.changed_ns / 1e9)
        self._retain(committed)
        return "", manifest

    def keep_only(self, paths: Mapping[str, object]) -> None:
        """Forget what was learned of files that are gone."""
        self._digests.keep_only(paths)
        self._judge.keep_only(paths)

    def abort_rest(self) -> None:
        """Uploads that were begun and will not be finished leave nothing behind."""
        self._abort([self._origin.attempt])

    def hurry(self) -> None:
        """The training is over, and its end waits for this."""
        self._lanes.close()
        self._lanes = Lanes(hurry=True)

    def close(self) -> None:
        self._lanes.close()

    def _begin(self) -> Committed:
        lets_go = not self._retention.keeps_all
        self._fence()
        # Nobody goes on with those: an object's key tells the attempt.
        self._abort(range(self._origin.attempt))
        if lets_go:
            # What a kill left half let go.
            prune_rank(self._store, self._origin, (), fence=self._fence)
        else:
            drop_outdated(self._store, self._origin.project_id, self._origin.job_id)
        # Read last: no object that went just now is counted on.
        return Committed(self._store, self._origin, own_objects=lets_go)

    def _abort(self, attempts: Iterable[int]) -> None:
        # Tidying: no reason to keep a job from its end.
        with contextlib.suppress(StoreError):
            for attempt in attempts:
                self._store.abort_uploads(rank_prefix(self._origin, attempt))

    def _workshop(self, committed: Committed) -> Workshop:
        return Workshop(
            store=self._store,
            origin=self._origin,
            folders=RecentFolders(self._volumes),
            lanes=self._lanes,
            digests=self._digests,
            committed=committed,
            tick=self._progress.moved,
        )

    def _fault(self, found: Found, committed: Committed) -> str:
        try:
            return self._judge.fault(found, committed.examples(found.name))
        except (FileNotFoundError, NotADirectoryError):
            return CHANGING
        except OSError as error:
            raise CheckpointError(
                f"a file cannot be read: {error}", rank=self._origin.rank, cause=str(error)
            ) from error

    def _kind(self, found: Found) -> Kind | None:
        try:
            return self._judge.kind(found)
        except OSError:
            return None

    def _commit(
        self, committed: Committed, found: Found, entries: tuple[Entry, ...], kind: Kind
    ) -> Manifest | None:
        """None when the newest commit says all of it already."""
        if committed.holds_content(found.name, {entry.path: entry.sha256 for entry in entries}):
            return None
        origin = self._origin
        self._fence()
        return committed.commit(
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

    def _retain(self, committed: Committed) -> None:
        """Let go what the retention policy lets go; another time, if the store has trouble."""
        names = expendable(committed.names, self._retention)
        if not names:
            return
        try:
            self._fence()
            pruned = prune_rank(self._store, self._origin, names, fence=self._fence)
        except StoreError:
            # Nobody knows what is gone: the next checkpoint reads it from the store.
            self._committed = None
            return
        committed.forget(names=pruned.names, keys=pruned.keys)
        self._progress.change(pruned=(*self._progress.status.pruned, *pruned.names))


@dataclass(frozen=True)
class _Asked:
    """Files that cannot be read now prove nothing, and leave no doubt."""

    judge: Judge
    found: Found
    examples: list[Manifest]

    def finished(self) -> bool:
        with contextlib.suppress(OSError):
            return self.judge.finished(self.found, self.examples)
        return False

    def doubt(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.judge.doubt(self.found, self.examples))
        return False


def _is_known(found: Found, committed: Committed, seen: Found | None) -> bool:
    """By times for what an earlier uploader committed, exactly for what this one saw."""
    return committed.holds(found) and (
        seen is None or found is seen or found.files.items() <= seen.files.items()
    )
