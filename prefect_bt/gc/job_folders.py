"""Scanner of the state folder: nodes, checkpoints that were never uploaded, folders of jobs."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from prefect_bt.errors import StateError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import find_files
from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import JobStores, Liveness, list_stores
from prefect_bt.host.job_lock import lock_job, remove_job_lock
from prefect_bt.host.nodes.handle import HostHandle, delete_tree
from prefect_bt.host.state_folder import JobFolder, state_dir_id
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate

_MARK: Final = re.compile(r"([0-9A-Za-z]{1,64})\.([0-9]{1,9})\.([0-9]{1,9})\.([0-9a-f]+)")
_UNSAVED_REASON: Final = "may be the only copy: --include-unsaved removes it"


@dataclass(frozen=True)
class JobScanner:
    """Scanner of the jobs of one state folder."""

    state_dir: Path
    stores: JobStores
    include_unsaved: bool = False

    def scan(self) -> Iterator[Orphan]:
        """Yield what is left of jobs that are over and that no process owns."""
        for path in find_paths(self.state_dir / "jobs", "*"):
            if path.name.isalnum() and path.is_dir() and not path.is_symlink():
                job = JobFolder(self.state_dir, path.name)
                verdict = self.stores.check_unowned(job)
                if verdict.ended:
                    with suppress(FileNotFoundError):  # another process removes it
                        yield from list(self._iter_orphans(job, verdict))

    def _iter_orphans(self, job: JobFolder, verdict: Liveness) -> Iterator[Orphan]:
        def make(
            kind: OrphanKind, path: Path, remove: Callable[[], object], kept: str = ""
        ) -> Orphan:
            remove_owned = partial(self._run_as_owner, job, remove)
            size = _measure(path, recursive=kind is not OrphanKind.FOLDER)
            why, since = verdict.reason, verdict.since
            return Orphan(kind, str(path), why, remove_owned, job.job_id, size, since, kept)

        handles = LocalProcessSubstrate(self.state_dir).list_nodes(job.job_id)
        for handle in handles:
            yield make(OrphanKind.NODE, handle.folder.path, handle.remove)
        kept = "" if self.include_unsaved else _UNSAVED_REASON
        unsaved = _list_unsaved(job, handles)
        for rank in unsaved:
            yield make(OrphanKind.UNSAVED, rank, partial(delete_tree, rank, OSError), kept)
        if not (unsaved and kept):
            yield make(OrphanKind.FOLDER, job.path, partial(self._delete_folder, job))

    def _run_as_owner(self, job: JobFolder, remove: Callable[[], object]) -> None:
        """Call `remove` with the job's lock held, so that no process recovers the job meanwhile.

        StateError if the job has an owner or runs again.
        """
        if not job.path.exists():
            return
        with lock_job(self.state_dir, job.job_id, timeout=0) as lock:
            if not self.stores.check_liveness(job.job_id, list_stores(job)).ended:
                raise StateError(f"Job {job.job_id} runs again.", state="owned", next_step="")
            remove()
            remove_job_lock(self.state_dir, job.job_id, lock)

    def _delete_folder(self, job: JobFolder) -> None:
        """Delete the folder. OSError if a node or a checkpoint without another copy is in it."""
        if LocalProcessSubstrate(job.state_dir).list_nodes(job.job_id):
            raise OSError(f"{job.path} still holds nodes")
        if not self.include_unsaved and any(map(_measure, find_paths(job.path, "rank-*"))):
            raise OSError(f"{job.path} holds checkpoints that may have no other copy")
        delete_tree(job.path, OSError)


def find_handle(state_dir: Path, mark: str) -> HostHandle | None:
    """Return the node of a mark (host.state_folder.make_mark); None if it is not of this folder."""
    found = _MARK.fullmatch(mark)
    if found is None or not found[4].startswith(state_dir_id(state_dir)):
        return None
    return HostHandle(JobFolder(state_dir, found[1]), int(found[2]), int(found[3]))


def _list_unsaved(job: JobFolder, handles: Sequence[HostHandle]) -> list[Path]:
    """Return the folders of ranks with files that may not be in the store."""
    newest = {job.rank_folder(handle.rank): handle for handle in handles}
    return [
        rank
        for rank in find_paths(job.path, "rank-*")
        if _measure(rank) and (rank not in newest or newest[rank].has_unsaved_checkpoints())
    ]


def _measure(path: Path, *, recursive: bool = True) -> int:
    """Return the bytes of the files in the folder; `recursive`: also of those in its folders."""
    total = 0
    for file in find_files(path) if recursive else find_paths(path, "*"):
        with suppress(OSError):
            facts = file.lstat()
            total += 0 if stat.S_ISDIR(facts.st_mode) else facts.st_size
    return total
