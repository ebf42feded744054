"""Commit checkpoints that a job has left in its folder on this machine.

A final flush leaves incomplete checkpoints on the node, and all of them if the store failed. A job
that has ended is claimed meanwhile, so that no process retries it. Folders whose checkpoints are
all in the store are removed, as at the end of a job. Safe to kill and to repeat.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.checkpoints.layout import LocalCheckpoint
from prefect_bt.checkpoints.manifest import Manifest, UploadOrigin
from prefect_bt.checkpoints.uncommitted import UncommittedCheckpoint
from prefect_bt.checkpoints.upload.commit import CheckpointCommitter, Uncommitted
from prefect_bt.checkpoints.upload.progress import UploadProgress
from prefect_bt.checkpoints.volume_links import VolumeMounts, Volumes
from prefect_bt.checkpoints.watch.watcher import DirectoryWatcher
from prefect_bt.errors import CheckpointError, StateError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import find_files
from prefect_bt.host.job_lock import host_id, is_this_host
from prefect_bt.host.nodes.handle import UNUPLOADED_MARKER, delete_tree
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.jobs.delete import claim_finished_job
from prefect_bt.ledger.fencing_epochs import COMMIT
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import JobRecord, RetentionPolicy, UploadStatus
from prefect_bt.planning.node_layout import checkpoint_dir
from prefect_bt.settings import Settings

_POD_SUBSTRATE: Final = "kubernetes"


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint of a rank in `directory`: its checkpoint directory, or one set aside."""

    rank: int
    directory: Path
    local: LocalCheckpoint


@dataclass
class KeptCommit:
    """Result: new manifests, what is left, and removed folders.

    `unchanged`: checkpoints that the store has already, or that the job's retention deletes.
    """

    committed: list[Manifest] = field(default_factory=list[Manifest])
    unchanged: list[KeptCheckpoint] = field(default_factory=list[KeptCheckpoint])
    left: list[UncommittedCheckpoint] = field(default_factory=list[UncommittedCheckpoint])
    has_failed: bool = False
    """Whether a complete or named checkpoint could not be committed."""
    removed: list[Path] = field(default_factory=list[Path])


def list_kept(ledger: Ledger, record: JobRecord, settings: Settings) -> list[KeptCheckpoint]:
    """Return the checkpoints in the job's folder, committed or not.

    Those that a retry set aside are listed if the store has no checkpoint of their name: an older
    version must not replace a newer one. StateError if the job runs, or if the files are not on
    this machine.
    """
    state = ledger.get_state(record.id)
    if not state.terminal:
        raise StateError(
            f"Job {record.id} has not ended ({state.short_name}).",
            state=state.value,
            next_step="Complete checkpoints are committed while it runs. Try again after its end.",
        )
    _check_place(ledger, record, settings)
    committed = {
        (ref.rank, ref.name)
        for ref in iter_manifest_refs(ledger.store, record.project_id, record.id)
    }
    found: dict[tuple[int, str], KeptCheckpoint] = {}
    for rank, directory, is_aside in _iter_directories(JobFolder(settings.state_dir, record.id)):
        for local in _scan(directory, _mounts(record, directory)).values():
            if not (is_aside and (rank, local.name) in committed):
                found.setdefault((rank, local.name), KeptCheckpoint(rank, directory, local))
    return sorted(found.values(), key=lambda one: (one.local.mtime_ns, one.rank))


def commit_kept(  # noqa: PLR0913 (which checkpoints of which job, and how)
    ledger: Ledger,
    record: JobRecord,
    kept: Sequence[KeptCheckpoint],
    *,
    names: Collection[str],
    settings: Settings,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> KeptCommit:
    """Commit the complete ones of `kept`, or those of these `names` as they are.

    An incomplete checkpoint that is named gets the reason as its note.

    Raises StoreError, and StateError while the job runs or another machine has it.
    """
    owning = claim_finished_job(ledger, record.id, settings=settings, purpose=COMMIT)
    with owning as fence:
        run = _CommitRun(ledger, record, names=names, fence=fence, on_bytes=on_bytes)
        for directory in dict.fromkeys(one.directory for one in kept):
            run.commit_directory([one for one in kept if one.directory == directory])
        run.remove_saved(JobFolder(settings.state_dir, record.id))
    return run.result


def _check_place(ledger: Ledger, record: JobRecord, settings: Settings) -> None:
    if record.substrate == _POD_SUBSTRATE:
        raise StateError(
            f"Job {record.id} ran in pods, whose files Kubernetes deletes with them: what was not "
            "committed is lost.",
            state="lost",
            next_step=f"See what is committed: prefect-bt checkpoints list --job-id {record.id}",
        )
    attempts = ledger.list_attempts(record.id)
    host = attempts[-1].host if attempts else ""
    if not is_this_host(settings.state_dir, host):
        machine = host.partition(":")[0]
        same = machine == host_id(settings.state_dir).partition(":")[0]
        where = "with the PREFECT_BT_STATE_DIR of that job" if same else f"on {machine}"
        raise StateError(
            f"The checkpoints that job {record.id} kept are not in {settings.state_dir} of this "
            "machine.",
            state="elsewhere",
            next_step=f"Run the command {where}.",
        )


def _iter_directories(job: JobFolder) -> Iterator[tuple[int, Path, bool]]:
    """Yield rank, folder with checkpoints and whether a retry set them aside; the newest first."""
    for folder in find_paths(job.path, "rank-*"):
        rank = int(folder.name.removeprefix("rank-"))
        yield rank, job.checkpoints_folder(rank), False
        aside = find_paths(folder, "set-aside/attempt-*")
        for path in sorted(aside, key=lambda path: int(path.name.partition("-")[2]), reverse=True):
            yield rank, path, True


def _mounts(record: JobRecord, directory: Path) -> VolumeMounts:
    """Return the path of the checkpoint directory in the node, which absolute links begin with."""
    return ((checkpoint_dir(load_definition(record).job), directory),)


def _scan(directory: Path, mounts: VolumeMounts) -> dict[str, LocalCheckpoint]:
    watcher = DirectoryWatcher(Volumes(directory, mounts), use_inotify=False)
    try:
        return watcher.refresh(full=True)
    finally:
        watcher.close()


class _CommitRun:
    """Commit of the chosen checkpoints, one directory at a time."""

    def __init__(
        self,
        ledger: Ledger,
        record: JobRecord,
        *,
        names: Collection[str],
        fence: Callable[[], object],
        on_bytes: Callable[[int], object],
    ) -> None:
        self.result = KeptCommit()
        self._ledger, self._record, self._names = ledger, record, names
        self._fence, self._on_bytes = fence, on_bytes
        self._bytes_done = 0
        self._saved = set[tuple[Path, str]]()
        """Folders and names of checkpoints that the store has."""

    def commit_directory(self, kept: Sequence[KeptCheckpoint]) -> None:
        rank, directory, record = kept[0].rank, kept[0].directory, self._record
        volumes = Volumes(directory, _mounts(record, directory))
        watcher = DirectoryWatcher(volumes, use_inotify=False)
        self._bytes_done = 0
        committer = CheckpointCommitter(
            self._ledger.store,
            volumes=volumes,
            origin=UploadOrigin(
                record.project_id,
                record.id,
                rank=rank,
                attempt=self._ledger.list_attempts(record.id)[-1].attempt,
                group_size=load_definition(record).job.compute.node_count,
            ),
            is_unchanged=watcher.is_unchanged,
            progress=UploadProgress(self._report),
            # A checkpoint that is named is wanted whatever the job's policy deletes.
            retention=RetentionPolicy() if self._names else record.retention,
            fence=self._fence,
        )
        committer.raise_priority()
        try:
            watcher.refresh(full=True)
            for one in kept:
                self._commit_one(committer, one)
        finally:
            committer.close()
            watcher.close()

    def _report(self, status: UploadStatus) -> None:
        self._on_bytes(max(0, status.bytes_done - self._bytes_done))
        self._bytes_done = max(self._bytes_done, status.bytes_done)

    def _commit_one(self, committer: CheckpointCommitter, kept: KeptCheckpoint) -> None:
        if self._names and kept.local.name not in self._names:
            if committer.is_committed(kept.local):
                self._saved.add((kept.directory, kept.local.name))
            return
        try:
            made = committer.commit(kept.local, previous=None, as_it_is=bool(self._names))
        except CheckpointError as error:
            made, self.result.has_failed = Uncommitted(error.message), True
        if isinstance(made, Uncommitted):
            self.result.has_failed |= bool(self._names)
            kept_in = f"{os.uname().nodename}:{kept.directory}"
            self.result.left.append(
                UncommittedCheckpoint(kept.rank, kept.local.name, made.reason, kept_in)
            )
            return
        self._saved.add((kept.directory, kept.local.name))
        if made is None:
            self.result.unchanged.append(kept)
        else:
            self.result.committed.append(made)

    def remove_saved(self, job: JobFolder) -> None:
        """Remove folders of which the store has every checkpoint."""
        for rank, directory, _ in list(_iter_directories(job)):
            names = _scan(directory, _mounts(self._record, directory))
            if directory.is_dir() and all((directory, name) in self._saved for name in names):
                delete_tree(directory, _removal_error)
                self.result.removed.append(directory)
            rank_folder = job.rank_folder(rank)
            if not any(path.name != UNUPLOADED_MARKER for path in find_files(rank_folder)):
                delete_tree(rank_folder, _removal_error)


def _removal_error(what: str) -> StateError:
    return StateError(
        f"A folder of the job {what}.", state="kept", next_step="Run `prefect-bt gc`."
    )
