"""From a TrainingProject of an installed truss to ours.

The fields are read one by one, not with `model_dump`: truss dumps a project without its job, and a
list of checkpoints without the fields of their subclasses. The result is validated as JSON in
strict mode, so values that were put into a dict or list after construction, which pydantic does not
check, are refused with the name of their field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, cast

from pydantic import BaseModel, ValidationError

from prefect_bt.definitions.base import find_definition_class
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.job import TrainingProject
from prefect_bt.errors import DefinitionError

_TRUSS_PACKAGE: Final = "truss_train"


def to_training_project(value: object) -> TrainingProject:
    """Return `value` as our TrainingProject, itself if it is one. Raises DefinitionError.

    One of ours is validated as well: a dict or a list in it may have changed since it was made.
    """
    if not isinstance(value, TrainingProject) and not _is_truss_project(value):
        raise DefinitionError(
            f"push was given a {type(value).__name__}, which is not a training project.",
            next_step="Give the path of a config file, or a TrainingProject.",
        )
    document = json.dumps(_to_json_value(value, ""))
    try:
        converted = TrainingProject.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise definition_error(error, TrainingProject, where="The project to push") from error
    return value if isinstance(value, TrainingProject) else converted


def _is_truss_project(value: object) -> bool:
    """Whether `value` is a TrainingProject of truss, or of a subclass of it."""
    return isinstance(value, BaseModel) and any(
        kind.__name__ == "TrainingProject" and kind.__module__.partition(".")[0] == _TRUSS_PACKAGE
        for kind in type(value).__mro__
    )


def _to_json_value(value: object, path: str) -> object:
    """Return what JSON has for `value`; enums become their values, models their fields."""
    if isinstance(value, BaseModel):
        fields = _iter_fields(value)
        return {name: _to_json_value(item, f"{path}.{name}".lstrip(".")) for name, item in fields}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {
            _check_key(name, path): _to_json_value(item, f"{path}.{name}") for name, item in items
        }
    if isinstance(value, (list, tuple)):
        items = enumerate(cast("list[object]", value))
        return [_to_json_value(item, f"{path}[{place}]") for place, item in items]
    raise _invalid_value_error(path, f"a value of type {type(value).__name__} was given")


def _iter_fields(model: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield every field that our class has too, and every other that the program has set.

    A newer truss may have fields that we do not know: their defaults are left out, and a value that
    the program gave is refused later, by name.
    """
    ours = find_definition_class(type(model).__name__.lstrip("_"))
    for name in type(model).model_fields:
        if ours is None or name in ours.model_fields or name in model.model_fields_set:
            yield name, getattr(model, name)
    yield from (model.model_extra or {}).items()


def _check_key(name: object, path: str) -> str:
    if isinstance(name, str):
        return name
    raise _invalid_value_error(
        path, f"a key of type {type(name).__name__} was given; write a string"
    )


def _invalid_value_error(path: str, why: str) -> DefinitionError:
    return DefinitionError(
        f"The project to push: TrainingProject is not valid: {path}: {why}.",
        next_step="Correct the program that makes it.",
        field=path,
    )
