"""What jobs left in the state folder: nodes, checkpoints that were never uploaded, the folder."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.errors import StateError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import find_files
from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import JobStores, Liveness
from prefect_bt.host.job_lock import is_owned, lock_job, read_store_url, remove_job_lock
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.nodes.handle import HostHandle, delete_tree
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.planning.plan import NodePlan
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate

_MARK: Final = re.compile(r"([0-9A-Za-z]{1,64})\.([0-9]{1,9})\.([0-9]{1,9})\.[0-9a-f]+")
UNSAVED_REASON = "may be the only copy: --include-unsaved removes it"


@dataclass(frozen=True)
class JobScanner:
    """The jobs of one state folder."""

    state_dir: Path
    stores: JobStores
    include_unsaved: bool = False

    def scan(self) -> Iterator[Orphan]:
        for path in _folders(self.state_dir / "jobs"):
            job = JobFolder(self.state_dir, path.name)
            # Before and after: a job that was taken up in between is somebody's.
            if is_owned(self.state_dir, job.job_id):
                continue
            verdict = self._check_liveness(job)
            if verdict.ended and not is_owned(self.state_dir, job.job_id):
                with suppress(FileNotFoundError):  # another process is putting it away
                    yield from list(self._iter_orphans(job, verdict))

    def _check_liveness(self, job: JobFolder) -> Liveness:
        return self.stores.check_liveness(job.job_id, list_stores(job) or [self.stores.default_url])

    def _iter_orphans(self, job: JobFolder, verdict: Liveness) -> Iterator[Orphan]:
        handles = LocalProcessSubstrate(self.state_dir).list_nodes(job.job_id)
        for handle in handles:
            yield self._create_orphan(
                OrphanKind.NODE, handle.folder.path, job, verdict, remove=handle.remove
            )
        stays = False
        for rank in find_paths(job.path, "rank-*"):
            last = [handle for handle in handles if job.rank_folder(handle.rank) == rank][-1:]
            if _bytes(rank) and (not last or last[0].has_unsaved_checkpoints()):
                stays = stays or not self.include_unsaved
                yield self._unsaved(job, rank, verdict)
        if not stays:
            yield self._create_orphan(
                OrphanKind.FOLDER,
                job.path,
                job,
                verdict,
                remove=lambda: _delete_job_folder(job, self),
            )

    def _unsaved(self, job: JobFolder, rank: Path, verdict: Liveness) -> Orphan:
        return self._create_orphan(
            OrphanKind.UNSAVED,
            rank,
            job,
            verdict,
            remove=lambda: delete_tree(rank, OSError),
            kept_reason="" if self.include_unsaved else UNSAVED_REASON,
        )

    def _create_orphan(  # noqa: PLR0913 (what it is, whose, why, and how it goes)
        self,
        kind: OrphanKind,
        path: Path,
        job: JobFolder,
        verdict: Liveness,
        *,
        remove: Callable[[], object],
        kept_reason: str = "",
    ) -> Orphan:
        return Orphan(
            kind,
            str(path),
            verdict.reason,
            lambda: self._run_as_owner(job, remove),
            job=job.job_id,
            bytes=_bytes(path) if kind is not OrphanKind.FOLDER else _bytes(path, below=False),
            since=verdict.since,
            kept_reason=kept_reason,
        )

    def _run_as_owner(self, job: JobFolder, remove: Callable[[], object]) -> None:
        """Nobody takes the job up meanwhile. StateError when somebody has."""
        if not job.path.exists():
            return
        with lock_job(self.state_dir, job.job_id, timeout=0) as lock:
            if not self._check_liveness(job).ended:
                raise StateError(f"Job {job.job_id} runs again.", state="owned", next_step="")
            remove()
            remove_job_lock(self.state_dir, job.job_id, lock)


def list_stores(job: JobFolder) -> list[str]:
    """The stores that its owner or its nodes name; empty when none is told."""
    found: dict[str, None] = {}
    with suppress(OSError):
        found[read_store_url(job.state_dir, job.job_id)] = None
    for path in find_paths(job.path, "attempt-*/rank-0/plan.json"):
        plan = read_record(NodePlan, path)
        if plan is not None:
            found[plan.store] = None
    return [url for url in found if url]


def find_handle(state_dir: Path, mark: str) -> HostHandle | None:
    """The node of a mark (host.state_folder.new_mark); None for what is none."""
    found = _MARK.fullmatch(mark)
    if found is None:
        return None
    return HostHandle(JobFolder(state_dir, found[1]), int(found[2]), int(found[3]))


def _delete_job_folder(job: JobFolder, jobs: JobScanner) -> None:
    """The rest of the folder, if nothing in it may be the only copy, or in use."""
    if LocalProcessSubstrate(job.state_dir).list_nodes(job.job_id):
        raise OSError(f"{job.path} still holds nodes")
    if not jobs.include_unsaved and any(_bytes(rank) for rank in find_paths(job.path, "rank-*")):
        raise OSError(f"{job.path} holds checkpoints that may have no other copy")
    delete_tree(job.path, OSError)


def _is_job(path: Path) -> bool:
    return path.name.isalnum() and path.is_dir() and not path.is_symlink()


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(one for one in path.iterdir() if _is_job(one))
    except OSError:
        return []


def _bytes(path: Path, *, below: bool = True) -> int:
    """Of files: all of them, or only those that lie in the folder itself."""
    total = 0
    for file in find_files(path) if below else find_paths(path, "*"):
        with suppress(OSError):
            facts = file.lstat()
            total += 0 if stat.S_ISDIR(facts.st_mode) else facts.st_size
    return total
