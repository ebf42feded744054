"""List the checkpoints of a job that can be served, and explain why another cannot."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.checkpoints.upload.upload_status import UploadStatusReader, find_uncommitted_reason
from prefect_bt.definitions import ModelWeightsFormat
from prefect_bt.errors import CheckpointError, NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.serving.checkpoint_contents import read_contents
from prefect_bt.serving.served_model import CheckpointContents

LATEST = "latest"
_MAX_LISTED = 8
_GATHER = {
    "FSDP": "Save it with fsdp_state_dict_type FULL_STATE_DICT, or merge it: "
    "`accelerate merge-weights`.",
    "DeepSpeed": "Save it with stage3_gather_16bit_weights_on_model_save, or merge it: "
    "`python zero_to_fp32.py . OUT --safe_serialization` inside the checkpoint.",
    "Megatron": "Convert it to the format of Hugging Face.",
}


@dataclass(frozen=True)
class Candidate:
    """A committed checkpoint and its contents."""

    checkpoint: CommittedCheckpoint
    contents: CheckpointContents

    @property
    def name(self) -> str:
        return self.checkpoint.checkpoint_id


@dataclass(frozen=True)
class ServableCheckpoints:
    """A job and its committed checkpoints, oldest first."""

    job: JobRecord
    candidates: tuple[Candidate, ...]

    @property
    def servable(self) -> tuple[Candidate, ...]:
        """Return those that "latest" may mean: with the parts of all ranks."""
        return tuple(
            item
            for item in self.candidates
            if not item.checkpoint.missing_ranks and not why_not_servable(item)
        )

    @property
    def alternatives(self) -> str:
        """Return a sentence with the checkpoints that can be served."""
        names = [item.name for item in self.servable]
        if names:
            return f"Job {self.job.id} can serve: {_join_limited(names)}."
        return f"Nothing of job {self.job.id} can be served yet."


def list_servable(ledger: Ledger, job_id: str) -> ServableCheckpoints:
    """Return the checkpoints of a job. Raise NotFoundError, with the known jobs, for another ID."""
    try:
        job = ledger.get_job(job_id)
    except NotFoundError as error:
        raise NotFoundError("job", job_id, next_step=_describe_jobs(ledger)) from error
    found = list_checkpoints(ledger.store, job.project_id, job.id)
    return ServableCheckpoints(job, tuple(Candidate(one, read_contents(one)) for one in found))


def get_newest_servable(ledger: Ledger, project: str = "") -> ServableCheckpoints:
    """Return the checkpoints of the newest job that has a servable one. Raise NotFoundError.

    `project` is the name or ID of the project to search, by default all.
    """
    project_id = ledger.projects.get(project).id if project else None
    for job in reversed(ledger.list_jobs(project_id=project_id)):
        found = list_servable(ledger, job.id)
        if found.servable:
            return found
    raise NotFoundError(
        "checkpoint",
        f"{LATEST} of {f'project {project}' if project else 'any job'}",
        next_step="Nothing that can be served has been committed there yet.",
    )


def get_candidate(ledger: Ledger, found: ServableCheckpoints, name: str) -> Candidate:
    """Return a checkpoint by name, ID or "latest": the last one that can be served, or the last.

    A checkpoint may be named "latest". NotFoundError if there is none of that name.
    """
    for item in found.candidates:
        if name in {item.name, item.checkpoint.id}:
            return item
    if name == LATEST and found.candidates:
        return (found.servable or found.candidates)[-1]
    why = "" if name == LATEST else _explain_uncommitted(ledger, found.job, name)
    if why:
        raise CheckpointError(
            f"The checkpoint {name} of job {found.job.id} is not committed: {why}.",
            next_step=found.alternatives,
        )
    raise NotFoundError("checkpoint", f"{name} of job {found.job.id}", next_step=found.alternatives)


def why_not_servable(
    item: Candidate, stated: ModelWeightsFormat | None = None
) -> tuple[str, str] | None:
    """Return the predicate of a sentence about the checkpoint, and a remedy; None: servable.

    `stated` is the format that a config sets.
    """
    held = item.contents
    if "@" in item.name:
        return (
            "has an @ in its name, which a weights source cannot contain",
            "Save it under another name.",
        )
    if held.sharding:
        return (
            f"is sharded by {held.sharding}, and servers need a complete model",
            _GATHER.get(held.sharding, ""),
        )
    if held.other_ranks:
        ranks = ", ".join(map(str, held.other_ranks))
        return (
            f"has its weights in the files of rank {ranks}, and servers get the files of rank "
            f"{item.checkpoint.manifests[0].rank}",
            "Save the model from rank 0.",
        )
    if not held.has_weights:
        return "holds no weights (*.safetensors or *.bin)", ""
    return _why_format_not_servable(held.format, stated)


def _why_format_not_servable(
    found: ModelWeightsFormat | None, stated: ModelWeightsFormat | None
) -> tuple[str, str] | None:
    if found is None and stated is None:
        return (
            "does not show the format of its weights: no config.json or adapter_config.json "
            "is beside them",
            "Save the model's configuration too, or name the format in a config: "
            "FullCheckpoint(...), LoRACheckpoint(...) or WhisperCheckpoint(...).",
        )
    if found and stated and found is not stated:
        return f"holds {found.value} weights, and the config calls them {stated.value}", (
            f"Write {_CLASSES[found]}(...)."
        )
    return None


_CLASSES = {
    ModelWeightsFormat.FULL: "FullCheckpoint",
    ModelWeightsFormat.LORA: "LoRACheckpoint",
    ModelWeightsFormat.WHISPER: "WhisperCheckpoint",
}


def _explain_uncommitted(ledger: Ledger, job: JobRecord, name: str) -> str:
    """Return the reason of the job's uploaders; "" if they know no such checkpoint."""
    for attempt in reversed(ledger.list_attempts(job.id)):
        uploads = UploadStatusReader(ledger.store, job.project_id, job.id, attempt.attempt)
        for status in (one.status for one in uploads.read()):
            if status.current == name:
                return "it is being uploaded"
            entries = (*status.waiting, *status.uncommitted)
            if reason := find_uncommitted_reason(entries, name):
                return reason.rstrip(".")
    return ""


def _describe_jobs(ledger: Ledger) -> str:
    jobs = [f"{job.id} ({job.name} of {job.project_name})" for job in ledger.list_jobs()]
    if not jobs:
        return "There is none yet: push one first."
    return f"Jobs here: {_join_limited(jobs)}."


def _join_limited(names: list[str]) -> str:
    """Return the newest names, separated by commas."""
    more = len(names) - _MAX_LISTED
    return f"{'… ' if more > 0 else ''}{', '.join(names[-_MAX_LISTED:])}"
