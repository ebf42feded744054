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
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.planning.translation import normalize_path
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
    not_servable_error,
)
from prefect_bt.serving.served_model import BaseModel, ModelSelection, SelectedCheckpoint

MODEL_NAME: Final = re.compile(r"[0-9A-Za-z_.-]{1,100}")
ROOT: Final = "."


@dataclass(frozen=True)
class CheckpointRequest:
    """`checkpoint`: a name, an id or "latest"; `configured`: as a config writes it."""

    job_id: str
    checkpoint: str = LATEST
    configured: Checkpoint | None = None


def requests_from_config(details: CheckpointList | None) -> tuple[CheckpointRequest, ...]:
    """What a config names; empty where it leaves the choice open. DefinitionError for Loops."""
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
    """Names of one job's checkpoints; without any, the latest.

    Without a job that of the newest that has one, in `project` if it is given. NotFoundError where
    there is none.
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
    """What is served, with all rules kept.

    NotFoundError, CheckpointError or DefinitionError says why nothing is.

    Args:
        ledger: Where the jobs are.
        wanted: One checkpoint, or LoRA adapters of one base model.
        base_model: An id of the Hub, a weights URI or a folder; over what the adapters tell.
        served_names: `<checkpoint>` or `<job id>/<checkpoint>` -> the name that it answers under,
            by default its own.
        download_folder: Where the checkpoints are mounted.
    """
    if not requests:
        raise DefinitionError(
            "No checkpoint was chosen.", next_step=f'Name at least one, or "{LATEST}".'
        )
    folder = _validate_download_folder(download_folder)
    shelves = {wish.job_id: list_servable(ledger, wish.job_id) for wish in requests}
    picked = {
        (wish.job_id, item.name): _select_checkpoint(shelves[wish.job_id], item, wish)
        for wish in requests
        for item in [get_candidate(ledger, shelves[wish.job_id], wish.checkpoint)]
    }
    models = list(picked.values())
    _check_combination(models)
    models = _assign_served_names(models, served_names or {})
    placed = tuple(replace(one, folder=_choose_mount(one, models, folder)) for one in models)
    base = _resolve_base(ledger, placed, base_model, shelves)
    if base is not None:
        base = replace(base, mount_location=f"{folder}/base")
    return ModelSelection(placed, base, folder, tuple(_notes(placed)))


def check_model_name(name: str) -> str:
    """DefinitionError for what cannot name a deployment."""
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
    shelf: ServableCheckpoints, item: Candidate, request: CheckpointRequest
) -> SelectedCheckpoint:
    stated = request.configured
    format_ = stated.model_weight_format if stated else None
    if error := not_servable_error(shelf, item, format_):
        raise error
    found = item.contents.format or format_
    assert found is not None, "an obstacle otherwise"
    said = stated if isinstance(stated, LoRACheckpoint) else None
    return SelectedCheckpoint(
        name=item.name,
        project_id=shelf.job.project_id,
        job_id=shelf.job.id,
        checkpoint=item.name,
        format=found,
        manifest=item.checkpoint.manifests[0].key,
        manifests=tuple(item.checkpoint.manifest_keys.values()),
        folder="",
        contents=item.contents,
        configured_lora_rank=said.lora_details.rank
        if said and "rank" in said.lora_details.model_fields_set
        else None,
    )


def _check_combination(models: Sequence[SelectedCheckpoint]) -> None:
    alone = [one for one in models if one.format is not ModelWeightsFormat.LORA]
    if len(models) == 1 or not alone:
        return
    what = "a Whisper model" if alone[0].format is ModelWeightsFormat.WHISPER else "a full model"
    raise DefinitionError(
        f"{len(models)} checkpoints were chosen, and {_describe(alone[0])} is {what}, which a "
        "server serves alone.",
        next_step="Choose a single checkpoint; only LoRA adapters are served together.",
        field="checkpoint_details.checkpoints",
    )


def _assign_served_names(
    models: Sequence[SelectedCheckpoint], names: Mapping[str, str]
) -> list[SelectedCheckpoint]:
    """Every one under the name it answers to, no two alike."""
    left = dict(names)
    named: dict[str, SelectedCheckpoint] = {}
    for one in models:
        short = left.pop(one.checkpoint, "") if _has_unique_name(one, models) else ""
        name = left.pop(_qualified_name(one), short) or short or _default_served_name(one)
        if not name.strip() or any(sign < " " or sign == "\x7f" for sign in name):
            raise DefinitionError(
                f"{name!r} cannot be the name of {_describe(one)} in requests.",
                next_step=f"Give it another name: --served-name {_qualified_name(one)}=NAME.",
            )
        if name in named:
            raise DefinitionError(
                f"The {_describe(named[name])} and {_describe(one)} would both answer as {name}.",
                next_step="Give one of them another name: --served-name "
                f"{_qualified_name(one)}=NAME (served_names in Python), or deploy them under two "
                "model names.",
            )
        named[name] = replace(one, name=name)
    if left:
        there = ", ".join(_qualified_name(one) for one in models)
        raise DefinitionError(
            f"served_names has {', '.join(left)}, which is not served.",
            next_step=f"Served are: {there}.",
        )
    return list(named.values())


def _has_unique_name(one: SelectedCheckpoint, models: Sequence[SelectedCheckpoint]) -> bool:
    return sum(other.checkpoint == one.checkpoint for other in models) == 1


def _default_served_name(one: SelectedCheckpoint) -> str:
    """Files in the checkpoint directory itself are called after their job: `.` is no name."""
    return one.job_id if one.checkpoint == ROOT else one.checkpoint


def _choose_mount(
    one: SelectedCheckpoint, models: Sequence[SelectedCheckpoint], folder: str
) -> str:
    """Return the mount path of a checkpoint, changed if it would cover another served one."""
    place = normalize_path(f"{folder}/{one.job_id}/rank-0/{one.checkpoint}")
    others = {
        normalize_path(f"{folder}/{other.job_id}/rank-0/{other.checkpoint}")
        for other in models
        if other is not one
    }
    while any(other == place or other.startswith(f"{place}/") for other in others):
        place += "/_"
    return place


def _notes(models: Sequence[SelectedCheckpoint]) -> Iterator[str]:
    for one in models:
        if one.checkpoint == ROOT:
            yield f"The files in the checkpoint directory of job {one.job_id} answer as {one.name}."
    if len({one.contents.chat_template for one in models}) > 1:
        yield "The adapters' chat templates differ; vLLM uses the base model's for all of them."


def _resolve_base(
    ledger: Ledger,
    models: Sequence[SelectedCheckpoint],
    configured: str,
    shelves: Mapping[str, ServableCheckpoints],
) -> BaseModel | None:
    """What an adapter stands on; of a whole model, the tokenizer that it was saved without."""
    if models[0].format is ModelWeightsFormat.LORA:
        return (
            _resolve_stated_base(ledger, configured)
            if configured
            else _resolve_common_base(ledger, models, shelves)
        )
    if models[0].contents.has_tokenizer:
        return None
    found = (
        _resolve_stated_base(ledger, configured)
        if configured
        else _find_trained_base(ledger, models[0], shelves)
    )
    if found is None:
        raise DefinitionError(
            f"The {_describe(models[0])} was saved without its tokenizer, which requests need.",
            next_step="Give base_model_id (--base-model): the model whose tokenizer it used.",
            field="checkpoint_details.base_model_id",
        )
    return without_weights(found)


def _resolve_stated_base(ledger: Ledger, configured: str) -> BaseModel:
    return resolve_checkpoint_base(ledger, parse_base_model(configured))


def _resolve_common_base(
    ledger: Ledger, models: Sequence[SelectedCheckpoint], shelves: Mapping[str, ServableCheckpoints]
) -> BaseModel:
    bases = [(one, _resolve_adapter_base(ledger, one, shelves)) for one in models]
    (first, base), *others = bases
    for one, other in others:
        if (other.source, other.subfolder) != (base.source, base.subfolder):
            raise DefinitionError(
                f"The {_describe(first)} is an adapter of {base.model}, {_describe(one)} one of "
                f"{other.model}; a server has one base model.",
                next_step="Deploy them under two model names, or give base_model_id if these are "
                "two names of one model.",
                field="checkpoint_details.checkpoints",
            )
    return base


def _resolve_adapter_base(
    ledger: Ledger, one: SelectedCheckpoint, shelves: Mapping[str, ServableCheckpoints]
) -> BaseModel:
    found, model = _find_trained_base(ledger, one, shelves), one.contents.base_model
    if found is not None:
        return found
    step = "Give base_model_id (--base-model), a Hugging Face ID or a weights URI"
    if not model:
        what = "does not name its base model"
    else:
        what = f"was trained on {model!r}, a folder outside its job"
        step += f", or file://{model} if it is on this machine" if model[0] == "/" else ""
    raise DefinitionError(
        f"The {_describe(one)} {what}.",
        next_step=f"{step}.",
        field="checkpoint_details.base_model_id",
    )


def _find_trained_base(
    ledger: Ledger, one: SelectedCheckpoint, shelves: Mapping[str, ServableCheckpoints]
) -> BaseModel | None:
    held = one.contents
    if not held.base_model:
        return None
    return resolve_trained_base(
        ledger, shelves[one.job_id].job, held.base_model, held.base_revision
    )


def _qualified_name(one: SelectedCheckpoint) -> str:
    return f"{one.job_id}/{one.checkpoint}"


def _describe(one: SelectedCheckpoint) -> str:
    return f"checkpoint {one.checkpoint} of job {one.job_id}"
