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

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.checkpoints.committed.load_references import resolve_loaded_checkpoints
from prefect_bt.definitions import TrainingProject, WeightsSource
from prefect_bt.errors import DefinitionError, NotFoundError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.opening import load_definition
from prefect_bt.ledger.records import JobRecord
from prefect_bt.planning.plan import LoadedCheckpoint
from prefect_bt.planning.planner import plan_weights
from prefect_bt.planning.translation import checkpoint_dir, normalize_path
from prefect_bt.planning.weights_validation import parse_weights_source
from prefect_bt.serving.served_model import BaseModel

HUB_ID: Final = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?(?:@\S+)?")
DUPLICATE_FORMATS: Final = (
    "original/**",
    "onnx/**",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.gguf",
)
"""The same weights once more for other programs, in many repositories of the Hub."""
TRAINING_STATE: Final = ("optimizer.pt", "optimizer.bin", "optimizer.safetensors")
"""Twice the model's own size, and of no use to a server."""
_HUB_CACHE_PATH: Final = re.compile(
    r"/models--(?P<repository>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})"
)
"""A folder of the Hub's cache, wherever that lay; no id has -- in it."""
_CHECKPOINT_URI: Final = re.compile(r"bt://(?P<project>[^/@]+)@(?P<job>[^/@]+)/(?P<name>[^@]+)")
_EXAMPLES: Final = 'Write for example "org/model", "s3://bucket/prefix" or "/models/base".'
_WEIGHT_SUFFIXES: Final = ("safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "ot")


def parse_base_model(model: str) -> BaseModel:
    """What a person calls it: an id of the Hub, a weights URI, a folder of this machine.

    DefinitionError for anything else.
    """
    if "://" in model:
        try:
            parse_weights_source({"source": model})
        except DefinitionError as error:
            raise DefinitionError(f"base_model_id: {error.message}", next_step=_EXAMPLES) from error
        return BaseModel(model, model, ignore_patterns=_default_ignore_patterns(model))
    if model.startswith("/"):
        return BaseModel(model, f"file://{model}")
    if HUB_ID.fullmatch(model):
        return BaseModel(model, f"hf://{model}", ignore_patterns=DUPLICATE_FORMATS)
    raise DefinitionError(
        f"base_model_id is {model!r}, which is neither a Hugging Face ID, a URI nor an "
        "absolute path.",
        next_step=_EXAMPLES,
        field="base_model_id",
        value=model,
    )


def resolve_checkpoint_base(ledger: Ledger, base: BaseModel) -> BaseModel:
    """A checkpoint that somebody names in full, as the one that it is now, to be held and pinned.

    Any other is what it was; the mirror says what it does not find.
    """
    named = _CHECKPOINT_URI.fullmatch(base.source)
    if named is None:
        return base
    project = ledger.get_project(named["project"])
    for job in reversed(ledger.list_jobs(project_id=project.id)):
        if named["job"] in {job.id, job.name}:
            found = _find_base_checkpoint(
                ledger, project.id, job.id, named["name"], model=base.model
            )
            if found:
                return found
    return base


def resolve_trained_base(
    ledger: Ledger, job: JobRecord, model: str, revision: str = ""
) -> BaseModel | None:
    """What an adapter of that job calls its base model; None where only a person can tell."""
    if not model.startswith(("/", ".")):
        at = f"@{revision}" if revision and "@" not in model else ""
        return parse_base_model(model + at) if HUB_ID.fullmatch(model) else None
    path = normalize_path(model)
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    if cached := _HUB_CACHE_PATH.search(path):
        owner, _, name = cached["repository"].partition("--")
        return parse_base_model(f"{owner}{'/' if name else ''}{name}@{cached['commit']}")
    definition = load_definition(job)
    return (
        _base_from_weights(ledger, job, definition, path)
        or _base_from_own_checkpoints(ledger, job, definition, path)
        or _base_from_loaded_checkpoints(ledger, job, definition, path)
    )


def without_weights(base: BaseModel) -> BaseModel:
    """The same without its weights."""
    weights = (f"**/*.{suffix}" for suffix in _WEIGHT_SUFFIXES)
    ignored = dict.fromkeys((*(base.ignore_patterns or ()), *weights))
    return replace(base, ignore_patterns=tuple(ignored), tokenizer_only=True)


def base_from_checkpoint(model: str, found: CommittedCheckpoint) -> BaseModel:
    """A checkpoint as the base of others. `model`: what it was called."""
    name = found.checkpoint_id
    return BaseModel(
        model,
        f"bt://{found.project_id}@{found.job_id}/{name}",
        ignore_patterns=TRAINING_STATE,
        required_checkpoint=LoadedCheckpoint(
            found.project_id, found.job_id, name, tuple(found.manifest_keys.values())
        ),
    )


def _default_ignore_patterns(source: str) -> tuple[str, ...] | None:
    scheme = source.partition("://")[0]
    return {"hf": DUPLICATE_FORMATS, "bt": TRAINING_STATE}.get(scheme)


def _base_from_weights(
    ledger: Ledger, job: JobRecord, definition: TrainingProject, path: str
) -> BaseModel | None:
    """Exactly what the job had: the same source, patterns and revision, so it is here already."""
    for given, plan in zip(definition.job.weights, plan_weights(definition.job), strict=True):
        inner = _relative_path(plan.mount_location, path)
        if not inner:
            continue
        pin = ledger.read_pinned_weights(job.id).get(plan.key)
        return BaseModel(
            path,
            given.source,
            subfolder="" if inner == "." else inner,
            pinned_revision=pin.revision if pin else "",
            allow_patterns=plan.allow_patterns,
            ignore_patterns=plan.ignore_patterns,
            auth=_get_source_auth(given),
            auth_secret_name=given.auth_secret_name or "",
        )
    return None


def _get_source_auth(source: WeightsSource) -> dict[str, str] | None:
    if source.auth is None:
        return None
    return {
        name: str(value)
        for name, value in source.auth.model_dump(mode="json", exclude_none=True).items()
    }


def _base_from_own_checkpoints(
    ledger: Ledger, job: JobRecord, definition: TrainingProject, path: str
) -> BaseModel | None:
    if not definition.job.runtime.checkpointing_config.enabled:
        return None
    inner = _relative_path(normalize_path(checkpoint_dir(definition.job)), path)
    return _find_base_checkpoint(ledger, job.project_id, job.id, inner, model=path)


def _base_from_loaded_checkpoints(
    ledger: Ledger, job: JobRecord, definition: TrainingProject, path: str
) -> BaseModel | None:
    """Find the base model among the loaded checkpoints, at a path with or without its rank."""
    load = definition.job.runtime.load_checkpoint_config
    inner = (
        _relative_path(normalize_path(load.download_folder), path) if load and load.enabled else ""
    )
    if not inner:
        return None
    with suppress(NotFoundError):
        loaded = resolve_loaded_checkpoints(
            ledger, definition, project_id=job.project_id, created_before=job.created_at
        )
        for one in loaded:
            if inner.removeprefix("rank-0/") == one.name:
                return _find_base_checkpoint(
                    ledger, one.project_id, one.job_id, one.name, model=path
                )
    return None


def _relative_path(folder: str, path: str) -> str:
    """The rest of the path; "." for the folder itself, empty for what is elsewhere."""
    if not PurePosixPath(path).is_relative_to(folder):
        return ""
    return str(PurePosixPath(path).relative_to(folder))


def _find_base_checkpoint(
    ledger: Ledger, project_id: str, job_id: str, name: str, *, model: str
) -> BaseModel | None:
    if not name:
        return None
    found: Iterator[CommittedCheckpoint] = (
        one
        for one in list_checkpoints(ledger.store, project_id, job_id)
        if one.checkpoint_id == name and one.type and "@" not in name
    )
    return next((base_from_checkpoint(model, one) for one in found), None)
