"""Select the checkpoints that one server serves (docs/compatibility.md, Serving).

The request is a `DeployCheckpointsConfig` or a list of names. The result is frozen: a checkpoint
that is written again during the deployment does not replace the selected version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from prefect_bt.definitions import Checkpoint, CheckpointList, LoRACheckpoint, ModelWeightsFormat
from prefect_bt.definitions.deploy import DEFAULT_DOWNLOAD_FOLDER
from prefect_bt.errors import CheckpointError, DefinitionError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.planning.node_layout import normalize_path
from prefect_bt.serving.base_model import (
    parse_base_model,
    resolve_checkpoint_base,
    resolve_trained_base,
    without_weights,
)
from prefect_bt.serving.servable_checkpoints import (
    LATEST,
    Candidate,
    ServableCheckpoints,
    get_candidate,
    get_newest_servable,
    list_servable,
    why_not_servable,
)
from prefect_bt.serving.served_model import BaseModel, ModelSelection, SelectedCheckpoint

MODEL_NAME: Final = re.compile(r"[0-9A-Za-z_.-]{1,100}")
ROOT: Final = "."


@dataclass(frozen=True)
class CheckpointRequest:
    """`checkpoint` is a name, an id or "latest"; `configured` is its entry of a config."""

    job_id: str
    checkpoint: str = LATEST
    configured: Checkpoint | None = None


def requests_from_config(details: CheckpointList | None) -> tuple[CheckpointRequest, ...]:
    """Return the checkpoints that a config names. Raise DefinitionError for runs of Loops."""
    if details is None:
        return ()
    if details.loops_checkpoint_ids:
        raise DefinitionError(
            f"loops_checkpoint_ids names {', '.join(details.loops_checkpoint_ids)}; "
            "checkpoints of Loops runs are not supported.",
            next_step="Name checkpoints of training jobs.",
            field="checkpoint_details.loops_checkpoint_ids",
        )
    return tuple(
        CheckpointRequest(one.training_job_id, one.checkpoint_name, one)
        for one in details.checkpoints
    )


def requests_for_job(
    ledger: Ledger, names: Sequence[str] = (), *, job_id: str = "", project: str = ""
) -> tuple[CheckpointRequest, ...]:
    """Return requests for the checkpoints `names` of one job, by default the latest.

    The default job is the newest with a servable checkpoint, in `project` if given. Raise
    NotFoundError if there is none.
    """
    job = job_id or get_newest_servable(ledger, project).job.id
    return tuple(CheckpointRequest(job, name) for name in names or (LATEST,))


def select_models(
    ledger: Ledger,
    requests: Sequence[CheckpointRequest],
    *,
    base_model: str = "",
    served_names: Mapping[str, str] | None = None,
    download_folder: str = DEFAULT_DOWNLOAD_FOLDER,
) -> ModelSelection:
    """Return the models of one server. Raise NotFoundError, CheckpointError or DefinitionError.

    Args:
        ledger: Ledger of the jobs.
        requests: One checkpoint, or LoRA adapters of one base model.
        base_model: An id of the Hub, a weights URI or a folder; overrides the adapters' own.
        served_names: `<checkpoint>` or `<job id>/<checkpoint>` -> its name in requests; by default
            the name of the checkpoint.
        download_folder: Folder of the node where the checkpoints are mounted.
    """
    if not requests:
        raise DefinitionError(
            "No checkpoint was chosen.", next_step=f'Name at least one, or "{LATEST}".'
        )
    folder = _validate_download_folder(download_folder)
    jobs = {request.job_id: list_servable(ledger, request.job_id) for request in requests}
    selected: dict[tuple[str, str], SelectedCheckpoint] = {}
    for request in requests:
        item = get_candidate(ledger, jobs[request.job_id], request.checkpoint)
        found = _select_checkpoint(jobs[request.job_id], item, request)
        selected[found.job_id, found.checkpoint] = found
    models = list(selected.values())
    _check_combination(models)
    models = _assign_served_names(models, served_names or {})
    placed = tuple(replace(one, folder=_choose_mount(one, models, folder)) for one in models)
    base = _resolve_base(ledger, placed, base_model)
    if base is not None:
        base = replace(base, mount_location=f"{folder}/base")
    return ModelSelection(placed, base, folder, tuple(_notes(placed)))


def check_model_name(name: str) -> str:
    """Return the name of a deployment. Raise DefinitionError for an invalid one."""
    if not MODEL_NAME.fullmatch(name) or name in {".", ".."}:
        raise DefinitionError(
            f"The model name is {name!r}.",
            next_step="Use up to 100 letters, digits and _ - . only, for example my-model.",
            field="model_name",
            value=name,
        )
    return name


def _validate_download_folder(download_folder: str) -> str:
    folder = normalize_path(download_folder)
    if not folder.startswith("/") or folder == "/" or ".." in folder.split("/"):
        raise DefinitionError(
            f"download_folder is {download_folder!r}; checkpoints need an absolute path below /.",
            next_step=f"Leave it out for {DEFAULT_DOWNLOAD_FOLDER}.",
            field="checkpoint_details.download_folder",
            value=download_folder,
        )
    return folder


def _select_checkpoint(
    job: ServableCheckpoints, item: Candidate, request: CheckpointRequest
) -> SelectedCheckpoint:
    stated = request.configured
    format_ = stated.model_weight_format if stated else None
    if why := why_not_servable(item, format_):
        what, remedy = why
        steps = remedy if item.contents.sharding else f"{remedy} {job.alternatives}".strip()
        where = f"The checkpoint {item.name} of job {job.job.id}"
        raise CheckpointError(f"{where} {what}.", next_step=steps)
    missing = item.checkpoint.missing_part
    if missing and request.checkpoint == LATEST != item.name:
        raise CheckpointError(
            f"The checkpoint {item.name} of job {job.job.id} is not complete: {missing}",
            next_step=f"{job.alternatives} Or deploy it as it is: --checkpoint {item.name}.",
        )
    found = item.contents.format or format_
    assert found is not None, "why_not_servable requires a format"
    lora = stated.lora_details if isinstance(stated, LoRACheckpoint) else None
    return SelectedCheckpoint(
        name=item.name,
        project_id=job.job.project_id,
        job_id=job.job.id,
        checkpoint=item.name,
        format=found,
        manifests=tuple(item.checkpoint.manifest_keys.values()),
        folder="",
        contents=item.contents,
        missing_part=missing,
        configured_lora_rank=lora.rank if lora and "rank" in lora.model_fields_set else None,
    )


def _check_combination(models: Sequence[SelectedCheckpoint]) -> None:
    alone = [one for one in models if one.format is not ModelWeightsFormat.LORA]
    if len(models) == 1 or not alone:
        return
    what = "a Whisper model" if alone[0].format is ModelWeightsFormat.WHISPER else "a full model"
    raise DefinitionError(
        f"{len(models)} checkpoints were chosen, and {alone[0].label} is {what}, which a "
        "server serves alone.",
        next_step="Choose a single checkpoint; only LoRA adapters are served together.",
        field="checkpoint_details.checkpoints",
    )


def _assign_served_names(
    models: Sequence[SelectedCheckpoint], names: Mapping[str, str]
) -> list[SelectedCheckpoint]:
    """Return the models with their unique names in requests."""
    left = dict(names)
    named: dict[str, SelectedCheckpoint] = {}
    for one in models:
        is_unique = sum(other.checkpoint == one.checkpoint for other in models) == 1
        short = left.pop(one.checkpoint, "") if is_unique else ""
        # The files in the checkpoint directory itself are named after their job.
        default = one.job_id if one.checkpoint == ROOT else one.checkpoint
        name = left.pop(one.qualified_name, short) or short or default
        if not name.strip() or any(sign < " " or sign == "\x7f" for sign in name):
            raise DefinitionError(
                f"{name!r} cannot be the name of {one.label} in requests.",
                next_step=f"Give it another name: --served-name {one.qualified_name}=NAME.",
            )
        if name in named:
            raise DefinitionError(
                f"The {named[name].label} and {one.label} would both answer as {name}.",
                next_step="Give one of them another name: --served-name "
                f"{one.qualified_name}=NAME (served_names in Python), or deploy them under two "
                "model names.",
            )
        named[name] = replace(one, name=name)
    if left:
        there = ", ".join(one.qualified_name for one in models)
        raise DefinitionError(
            f"served_names has {', '.join(left)}, which is not served.",
            next_step=f"Served are: {there}.",
        )
    return list(named.values())


def _choose_mount(
    one: SelectedCheckpoint, models: Sequence[SelectedCheckpoint], folder: str
) -> str:
    """Return the mount path of a checkpoint, changed if it would cover another served one."""

    def get_path(model: SelectedCheckpoint) -> str:
        return normalize_path(f"{folder}/{model.job_id}/rank-0/{model.checkpoint}")

    place, others = get_path(one), {get_path(other) for other in models if other is not one}
    while any(other == place or other.startswith(f"{place}/") for other in others):
        place += "/_"
    return place


def _notes(models: Sequence[SelectedCheckpoint]) -> Iterator[str]:
    for one in models:
        if one.missing_part:
            yield f"The {one.label} is not complete: {one.missing_part}"
        if one.checkpoint == ROOT:
            yield f"The files in the checkpoint directory of job {one.job_id} answer as {one.name}."
    if len({one.contents.chat_template for one in models}) > 1:
        yield "The adapters' chat templates differ; vLLM uses the base model's for all of them."


def _resolve_base(
    ledger: Ledger, models: Sequence[SelectedCheckpoint], configured: str
) -> BaseModel | None:
    """Return the base model of adapters, or the tokenizer of a model that was saved without it."""
    first, is_lora = models[0], models[0].format is ModelWeightsFormat.LORA
    if not is_lora and first.contents.has_tokenizer:
        return None
    if configured:
        base = resolve_checkpoint_base(ledger, parse_base_model(configured))
    elif is_lora:
        base = _resolve_common_base(ledger, models)
    else:
        base = _find_trained_base(ledger, first)
    if base is None:
        raise DefinitionError(
            f"The {first.label} was saved without its tokenizer, which requests need.",
            next_step="Give base_model_id (--base-model): the model whose tokenizer it used.",
            field="checkpoint_details.base_model_id",
        )
    return base if is_lora else without_weights(base)


def _resolve_common_base(ledger: Ledger, models: Sequence[SelectedCheckpoint]) -> BaseModel:
    bases = [(one, _resolve_adapter_base(ledger, one)) for one in models]
    (first, base), *others = bases
    for one, other in others:
        if (other.source, other.subfolder) != (base.source, base.subfolder):
            raise DefinitionError(
                f"The {first.label} is an adapter of {base.model}, {one.label} one of "
                f"{other.model}; a server has one base model.",
                next_step="Deploy them under two model names, or give base_model_id if these are "
                "two names of one model.",
                field="checkpoint_details.checkpoints",
            )
    return base


def _resolve_adapter_base(ledger: Ledger, one: SelectedCheckpoint) -> BaseModel:
    found, model = _find_trained_base(ledger, one), one.contents.base_model
    if found is not None:
        return found
    step = "Give base_model_id (--base-model), a Hugging Face ID or a weights URI"
    if not model:
        what = "does not name its base model"
    else:
        what = f"was trained on {model!r}, a folder outside its job"
        step += f", or file://{model} if it is on this machine" if model[0] == "/" else ""
    raise DefinitionError(
        f"The {one.label} {what}.", next_step=f"{step}.", field="checkpoint_details.base_model_id"
    )


def _find_trained_base(ledger: Ledger, one: SelectedCheckpoint) -> BaseModel | None:
    model, revision = one.contents.base_model, one.contents.base_revision
    if not model:
        return None
    return resolve_trained_base(ledger, ledger.get_job(one.job_id), model, revision)
