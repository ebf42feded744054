"""Convert definitions to JSON documents and back.

    {"name": "...", "team_name": null,
     "job": {"image": {...}, "compute": {..., "accelerator": {"accelerator": "H100", "count": 8}},
             "runtime": {...}, "interactive_session": null, "name": null, "priority": null,
             "workspace": null, "weights": [...], "enable_baseten_workdir": true}}

A document is stored with a job, and a UI sends one. Reading JSON is not strict: enums are plain
strings and `"accelerator": "H100:8"` is accepted. Unknown fields are refused as in code. Missing
fields take the defaults of the classes. Reading the document of an object gives an equal object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from prefect_bt.definitions.compute import Compute
from prefect_bt.definitions.deploy import DeployCheckpointsConfig
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.job import TrainingProject
from prefect_bt.errors import DefinitionError

T = TypeVar("T", bound=BaseModel)

Document = str | bytes | Mapping[str, Any]


def training_project_from_json(document: Document) -> TrainingProject:
    """Return the project of JSON text or of a decoded document; raise DefinitionError."""
    return _validate(TrainingProject, document)


def project_document(project: TrainingProject) -> dict[str, Any]:
    """Return the project and its job as JSON-ready values. Secrets are references, not values."""
    job = project.job.model_dump(mode="json")
    job["compute"] = _compute_document(project.job.compute)
    return {**project.model_dump(mode="json"), "job": job}


def deploy_config_from_json(document: Document) -> DeployCheckpointsConfig:
    """Return the config of JSON text or of a decoded document; raise DefinitionError."""
    return _validate(DeployCheckpointsConfig, document)


def deploy_config_document(config: DeployCheckpointsConfig) -> dict[str, Any]:
    """Return the config as JSON-ready values."""
    data = config.model_dump(mode="json")
    if config.compute is not None:
        data["compute"] = _compute_document(config.compute)
    return data


def _compute_document(compute: Compute) -> dict[str, Any]:
    data = compute.model_dump(mode="json")
    if (spec := compute.accelerator) is not None:
        kind = spec.accelerator.value if spec.accelerator else None
        extra = spec.model_extra or {}
        data["accelerator"] = {**extra, "accelerator": kind, "count": spec.count}
    return data


def _validate(model: type[T], document: Document) -> T:
    try:
        data: object = json.loads(document) if isinstance(document, (str, bytes)) else document
    except ValueError as error:
        raise DefinitionError(
            f"The document of a {model.__name__} is not JSON: {error}.",
            next_step="Check it with `python -m json.tool`.",
            line=error.lineno if isinstance(error, json.JSONDecodeError) else None,
        ) from error
    if not isinstance(data, Mapping):
        raise DefinitionError(
            f"The JSON document of a {model.__name__} is a {type(data).__name__}.",
            next_step="Write an object, in braces, with the fields of the class.",
        )
    try:
        return model.model_validate(dict(cast("Mapping[str, Any]", data)), strict=False)
    except ValidationError as error:
        raise definition_error(error, model) from error
