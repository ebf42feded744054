"""Resolve the base model of a server to a weights source.

An adapter names the base model that its trainer loaded: an id of the Hub, or a folder. A folder of
the job is one of its weights, one of its checkpoints or one that it loaded, and resolves to that.
Any other folder was on some machine, and only the user knows the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint, list_checkpoints
from prefect_bt.checkpoints.committed.load_references import resolve_loaded_checkpoints
from prefect_bt.definitions import WeightsSource
from prefect_bt.errors import DefinitionError, NotFoundError
from prefect_bt.ledger.job_objects import PinnedWeights
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import JobRecord
from prefect_bt.planning.node_layout import checkpoint_dir, normalize_path
from prefect_bt.planning.plan import LoadedCheckpoint, WeightsPlan
from prefect_bt.planning.planner import plan_weights
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
"""Copies of the weights for other programs, in many repositories of the Hub."""
TRAINING_STATE: Final = ("optimizer.pt", "optimizer.bin", "optimizer.safetensors")
"""Files of twice the model's size that no server reads."""
_HUB_CACHE_PATH: Final = re.compile(
    r"/models--(?P<repository>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})"
)
"""A folder of a Hub cache at any path; no id contains --."""
_CHECKPOINT_URI: Final = re.compile(r"bt://(?P<project>[^/@]+)@(?P<job>[^/@]+)/(?P<name>[^@]+)")
_EXAMPLES: Final = 'Write for example "org/model", "s3://bucket/prefix" or "/models/base".'
_WEIGHT_SUFFIXES: Final = ("safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "ot")


def parse_base_model(model: str) -> BaseModel:
    """Return the base model of an id of the Hub, a weights URI or a folder of this machine.

    Raise DefinitionError for any other text.
    """
    source = f"hf://{model}" if HUB_ID.fullmatch(model) else model
    if "://" in source:
        try:
            parse_weights_source({"source": source})
        except DefinitionError as error:
            raise DefinitionError(f"base_model_id: {error.message}", next_step=_EXAMPLES) from error
        ignored = {"hf": DUPLICATE_FORMATS, "bt": TRAINING_STATE}.get(source.partition("://")[0])
        return BaseModel(model, source, ignore_patterns=ignored)
    if model.startswith("/"):
        return BaseModel(model, f"file://{model}")
    raise DefinitionError(
        f"base_model_id is {model!r}, which is neither a Hugging Face ID, a URI nor an "
        "absolute path.",
        next_step=_EXAMPLES,
        field="base_model_id",
        value=model,
    )


def resolve_checkpoint_base(ledger: Ledger, base: BaseModel) -> BaseModel:
    """Return the pinned checkpoint that a full URI names; any other base model as it is."""
    named = _CHECKPOINT_URI.fullmatch(base.source)
    if named is None:
        return base
    project = ledger.projects.get(named["project"])
    for job in reversed(ledger.list_jobs(project_id=project.id)):
        if named["job"] in {job.id, job.name}:
            for found in _list_models(ledger, job.project_id, job.id):
                if found.checkpoint_id == named["name"]:
                    return _base_from_checkpoint(base.model, found)
    return base


def resolve_trained_base(
    ledger: Ledger, job: JobRecord, model: str, revision: str = ""
) -> BaseModel | None:
    """Return the base model that an adapter of the job names; None for an unknown folder."""
    if not model.startswith(("/", ".")):
        at = f"@{quote(revision, safe='')}" if revision and "@" not in model else ""
        return parse_base_model(model + at) if HUB_ID.fullmatch(model) else None
    path = normalize_path(model)
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    if cached := _HUB_CACHE_PATH.search(path):
        owner, _, name = cached["repository"].partition("--")
        return parse_base_model(f"{owner}{'/' if name else ''}{name}@{cached['commit']}")
    for folder, base in _iter_job_models(ledger, job, path):
        inner = _relative_path(folder, path)
        if inner == ".":
            return base
        if inner and base.required_checkpoint is None:
            return replace(base, subfolder=inner)
    return None


def without_weights(base: BaseModel) -> BaseModel:
    """Return the base model without its weights files, for an engine that needs the tokenizer."""
    weights = (f"**/*.{suffix}" for suffix in _WEIGHT_SUFFIXES)
    ignored = dict.fromkeys((*(base.ignore_patterns or ()), *weights))
    return replace(base, ignore_patterns=tuple(ignored), tokenizer_only=True)


def _iter_job_models(ledger: Ledger, job: JobRecord, model: str) -> Iterator[tuple[str, BaseModel]]:
    """Yield the folders of the job's node that have a model: (folder, base model)."""
    definition = load_definition(job)
    runtime = definition.job.runtime
    pins = ledger.pins.read_weights(job.id)
    for given, plan in zip(definition.job.weights, plan_weights(definition.job), strict=True):
        yield plan.mount_location, _base_from_weights(model, given, plan, pins.get(plan.key))
    if runtime.checkpointing_config.enabled:
        directory = checkpoint_dir(definition.job)
        for found in _list_models(ledger, job.project_id, job.id):
            yield f"{directory}/{found.checkpoint_id}", _base_from_checkpoint(model, found)
    load = runtime.load_checkpoint_config
    if load is None or not load.enabled:
        return
    with suppress(NotFoundError):
        for one in resolve_loaded_checkpoints(
            ledger, definition, project_id=job.project_id, created_before=job.created_at
        ):
            for found in _list_models(ledger, one.project_id, one.job_id):
                if found.checkpoint_id == one.name:
                    base = _base_from_checkpoint(model, found)
                    yield f"{load.download_folder}/rank-0/{one.name}", base
                    yield f"{load.download_folder}/{one.name}", base


def _base_from_weights(
    model: str, given: WeightsSource, plan: WeightsPlan, pin: PinnedWeights | None
) -> BaseModel:
    """Return the weights as the job had them, which the mirror has already."""
    auth = given.auth.model_dump(mode="json", exclude_none=True) if given.auth else None
    return BaseModel(
        model,
        given.source,
        pinned_revision=pin.revision if pin else "",
        allow_patterns=plan.allow_patterns,
        ignore_patterns=plan.ignore_patterns,
        auth={name: str(value) for name, value in auth.items()} if auth else None,
        auth_secret_name=given.auth_secret_name or "",
    )


def _base_from_checkpoint(model: str, found: CommittedCheckpoint) -> BaseModel:
    name = found.checkpoint_id
    return BaseModel(
        model,
        f"bt://{found.project_id}@{found.job_id}/{name}",
        ignore_patterns=TRAINING_STATE,
        required_checkpoint=LoadedCheckpoint(
            found.project_id, found.job_id, name, tuple(found.manifest_keys.values())
        ),
    )


def _list_models(ledger: Ledger, project_id: str, job_id: str) -> list[CommittedCheckpoint]:
    """Return the job's checkpoints of a known type whose name a weights URI can contain."""
    found = list_checkpoints(ledger.store, project_id, job_id)
    return [one for one in found if one.type and "@" not in one.checkpoint_id]


def _relative_path(folder: str, path: str) -> str:
    """Return `path` relative to `folder`: "." for the folder itself, "" for a path outside it."""
    inner = PurePosixPath(path)
    place = normalize_path(folder)
    return str(inner.relative_to(place)) if inner.is_relative_to(place) else ""
