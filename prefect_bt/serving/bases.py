"""The base model of a server: from what somebody told to a weights source.

An adapter tells what its trainer was given: an id of the Hub, or a folder. A folder inside a job is
one of its weights, a checkpoint of its own or one that it loaded, and leads there; any other lay on
a machine, and only a person can say what it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from prefect_bt.checkpoints.catalogue import CommittedCheckpoint, list_checkpoints
from prefect_bt.definitions import TrainingProject, WeightsSource
from prefect_bt.errors import DefinitionError, NotFoundError
from prefect_bt.jobs import load_definition
from prefect_bt.ledger import Ledger
from prefect_bt.loading import resolve_load
from prefect_bt.plan import LoadedCheckpoint
from prefect_bt.planning import plan_weights
from prefect_bt.reading import checkpoint_dir, clean_path
from prefect_bt.records import JobRecord
from prefect_bt.refusals import check_source
from prefect_bt.serving.served import BaseModel

HUB_ID: Final = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?(?:@\S+)?")
DUPLICATES: Final = ("original/**", "onnx/**", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf")
"""The same weights once more for other programs, in many repositories of the Hub."""
TRAINING_STATE: Final = ("optimizer.pt", "optimizer.bin", "optimizer.safetensors")
"""Twice the model's own size, and of no use to a server."""
_CACHED: Final = re.compile(r"/models--(?P<repository>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")
"""A folder of the Hub's cache, wherever that lay; no id has -- in it."""
_STORED: Final = re.compile(r"bt://(?P<project>[^/@]+)@(?P<job>[^/@]+)/(?P<name>[^@]+)")
_FORMS: Final = 'Write for example "org/model", "s3://bucket/prefix" or "/models/base".'
_WEIGHTS: Final = ("safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "ot")


def told_base(model: str) -> BaseModel:
    """What a person calls it: an id of the Hub, a weights URI, a folder of this machine.

    DefinitionError for anything else.
    """
    if "://" in model:
        try:
            check_source({"source": model})
        except DefinitionError as error:
            raise DefinitionError(f"base_model_id: {error.what}", next_step=_FORMS) from error
        return BaseModel(model, model, ignore_patterns=_ignored(model))
    if model.startswith("/"):
        return BaseModel(model, f"file://{model}")
    if HUB_ID.fullmatch(model):
        return BaseModel(model, f"hf://{model}", ignore_patterns=DUPLICATES)
    raise DefinitionError(
        f"base_model_id is {model!r}, which is no id of the Hub, no URI and no absolute path.",
        next_step=_FORMS,
        field="base_model_id",
        value=model,
    )


def stored_base(ledger: Ledger, base: BaseModel) -> BaseModel:
    """A checkpoint that somebody names in full, as the one that it is now, to be held and pinned.

    Any other is what it was; the mirror says what it does not find.
    """
    named = _STORED.fullmatch(base.source)
    if named is None:
        return base
    project = ledger.project(named["project"])
    for job in reversed(ledger.jobs(project_id=project.id)):
        if named["job"] in {job.id, job.name}:
            found = _named(ledger, project.id, job.id, named["name"], model=base.model)
            if found:
                return found
    return base


def trained_base(
    ledger: Ledger, job: JobRecord, model: str, revision: str = ""
) -> BaseModel | None:
    """What an adapter of that job calls its base model; None where only a person can tell."""
    if not model.startswith(("/", ".")):
        at = f"@{revision}" if revision and "@" not in model else ""
        return told_base(model + at) if HUB_ID.fullmatch(model) else None
    path = clean_path(model)
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    if cached := _CACHED.search(path):
        owner, _, name = cached["repository"].partition("--")
        return told_base(f"{owner}{'/' if name else ''}{name}@{cached['commit']}")
    definition = load_definition(job)
    return (
        _of_weights(ledger, job, definition, path)
        or _of_own_checkpoints(ledger, job, definition, path)
        or _of_loaded(ledger, job, definition, path)
    )


def tokenizer_of(base: BaseModel) -> BaseModel:
    """The same without its weights."""
    weights = (f"**/*.{suffix}" for suffix in _WEIGHTS)
    ignored = dict.fromkeys((*(base.ignore_patterns or ()), *weights))
    return replace(base, ignore_patterns=tuple(ignored), tokenizer_only=True)


def checkpoint_base(model: str, found: CommittedCheckpoint) -> BaseModel:
    """A checkpoint as the base of others. `model`: what it was called."""
    name = found.checkpoint_id
    return BaseModel(
        model,
        f"bt://{found.project_id}@{found.job_id}/{name}",
        ignore_patterns=TRAINING_STATE,
        held=LoadedCheckpoint(
            found.project_id, found.job_id, name, tuple(found.manifest_keys.values())
        ),
    )


def _ignored(source: str) -> tuple[str, ...] | None:
    scheme = source.partition("://")[0]
    return {"hf": DUPLICATES, "bt": TRAINING_STATE}.get(scheme)


def _of_weights(
    ledger: Ledger, job: JobRecord, definition: TrainingProject, path: str
) -> BaseModel | None:
    """Exactly what the job had: the same source, patterns and revision, so it is here already."""
    for given, plan in zip(definition.job.weights, plan_weights(definition.job), strict=True):
        inner = _below(plan.mount_location, path)
        if not inner:
            continue
        pin = ledger.pinned_weights(job.id).get(plan.key)
        return BaseModel(
            path,
            given.source,
            inside="" if inner == "." else inner,
            pinned=pin.revision if pin else "",
            allow_patterns=plan.allow_patterns,
            ignore_patterns=plan.ignore_patterns,
            auth=_auth_of(given),
            auth_secret_name=given.auth_secret_name or "",
        )
    return None


def _auth_of(source: WeightsSource) -> dict[str, str] | None:
    if source.auth is None:
        return None
    return {
        name: str(value)
        for name, value in source.auth.model_dump(mode="json", exclude_none=True).items()
    }


def _of_own_checkpoints(
    ledger: Ledger, job: JobRecord, definition: TrainingProject, path: str
) -> BaseModel | None:
    if not definition.job.runtime.checkpointing_config.enabled:
        return None
    inner = _below(clean_path(checkpoint_dir(definition.job)), path)
    return _named(ledger, job.project_id, job.id, inner, model=path)


def _of_loaded(
    ledger: Ledger, job: JobRecord, definition: TrainingProject, path: str
) -> BaseModel | None:
    """Under the load directory, with its rank or without (§9)."""
    load = definition.job.runtime.load_checkpoint_config
    inner = _below(clean_path(load.download_folder), path) if load and load.enabled else ""
    if not inner:
        return None
    with suppress(NotFoundError):
        loaded = resolve_load(ledger, definition, project_id=job.project_id, before=job.created_at)
        for one in loaded:
            if inner.removeprefix("rank-0/") == one.name:
                return _named(ledger, one.project_id, one.job_id, one.name, model=path)
    return None


def _below(folder: str, path: str) -> str:
    """The rest of the path; "." for the folder itself, empty for what is elsewhere."""
    if not PurePosixPath(path).is_relative_to(folder):
        return ""
    return str(PurePosixPath(path).relative_to(folder))


def _named(
    ledger: Ledger, project_id: str, job_id: str, name: str, *, model: str
) -> BaseModel | None:
    if not name:
        return None
    found: Iterator[CommittedCheckpoint] = (
        one
        for one in list_checkpoints(ledger.store, project_id, job_id)
        if one.checkpoint_id == name and one.type and "@" not in name
    )
    return next((checkpoint_base(model, one) for one in found), None)
