"""A committed checkpoint as a weights source: `bt://project[@job][/checkpoint]`.

`bt://project` and `bt://project@latest` name the newest checkpoint of the newest job that has one;
`@job` names a job, `/checkpoint` one of its checkpoints. The files are those of the lowest rank, at
their paths in the checkpoint. The manifest never changes, so its key is the revision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from prefect_bt.checkpoints.committed import catalog
from prefect_bt.errors import NotFoundError, ObjectNotFound, PrefectBtError, StoreError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.protocol import Source, SourceRequest, TransientError

_LATEST: Final = "latest"


def checkpoint_revision(manifest_key: str) -> str:
    """Return the revision of the checkpoint, or of the rank's part, that the manifest commits."""
    return hashlib.sha256(manifest_key.encode()).hexdigest()[:40]


class CheckpointSource(Source):
    """The files of the lowest rank of a committed checkpoint."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        if request.store is None:
            text = "is in a store, and no store is configured here"
            raise self._error(text, "Set PREFECT_BT_STORE.")
        self._store = request.store

    def list_files(self) -> Listing:
        try:
            found = self._find()
        except PrefectBtError as error:
            raise self._explain(error) from error
        part = min(found.manifests, key=lambda part: part.rank)
        files = tuple(ListedFile(e.path, e.size, e.sha256, version_tag=e.key) for e in part.entries)
        return Listing(checkpoint_revision(part.key), files)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        size = (file.size or 0) - start if length < 0 else length
        try:
            yield self._store.get_range(file.version_tag, start=start, length=size)
        except ObjectNotFound as error:
            text = f"was deleted: {file.path} is missing"
            raise self._error(text, "Name another checkpoint.") from error
        except StoreError as error:
            raise self._explain(error) from error

    def _find(self) -> catalog.CommittedCheckpoint:
        reference, _, checkpoint = self._source.removeprefix("bt://").partition("/")
        if "@" not in reference:
            reference += f"@{_LATEST}"
        project_name, _, job_name = reference.rpartition("@")
        ledger = Ledger(self._store)
        project = ledger.projects.get(project_name)
        jobs = ledger.list_jobs(project_id=project.id)
        named = [job for job in jobs if job_name in {_LATEST, job.id, job.name}]
        if not named and job_name != _LATEST:
            listed = ", ".join(f"{job.id} ({job.name})" for job in jobs[-8:]) or "none"
            raise NotFoundError("job", job_name, next_step=f"That project has: {listed}.")
        for job in reversed(named):
            if found := self._find_in(job, checkpoint.strip("/")):
                return found
        where = f"project {project.name}" if job_name == _LATEST else f"job {job_name}"
        hint = "`prefect-bt checkpoints list --job-id …` shows what a job has committed."
        raise NotFoundError("checkpoint", f"{checkpoint or 'latest'} of {where}", next_step=hint)

    def _find_in(self, job: JobRecord, checkpoint: str) -> catalog.CommittedCheckpoint | None:
        if not checkpoint:
            return catalog.find_newest(self._store, job.project_id, job.id)
        committed = catalog.list_checkpoints(self._store, job.project_id, job.id)
        return next((one for one in committed[::-1] if one.checkpoint_id == checkpoint), None)

    def _explain(self, error: PrefectBtError) -> PrefectBtError:
        text = f"cannot be read: {error.message.rstrip('.')}"
        hint = error.next_step or "Check the project, the job, the checkpoint and the store."
        if isinstance(error, StoreError):
            return self._error(text, hint, TransientError)
        return self._error(text, hint)
