"""Convert a TrainingProject of an installed truss to ours.

The fields are read one by one, not with `model_dump`: truss dumps a project without its job, and a
list of checkpoints without the fields of their subclasses. The result is validated, so a value that
was put into a dict or list after construction, which pydantic does not check, is refused with the
name of its field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from pydantic import BaseModel, ValidationError

from prefect_bt.definitions.base import find_definition_class
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.job import TrainingProject
from prefect_bt.errors import DefinitionError

_TRUSS_PACKAGE: Final = "truss_train"


def to_training_project(value: object) -> TrainingProject:
    """Return `value` as our TrainingProject, itself if it is one. Raise DefinitionError.

    One of ours is validated as well: a dict or a list in it may have changed since it was made.
    """
    ours = isinstance(value, TrainingProject)
    theirs = isinstance(value, BaseModel) and any(  # of truss, or of a subclass of it
        kind.__name__ == "TrainingProject" and kind.__module__.partition(".")[0] == _TRUSS_PACKAGE
        for kind in type(value).__mro__
    )
    if not ours and not theirs:
        raise DefinitionError(
            f"push was given a {type(value).__name__}, which is not a training project.",
            next_step="Give the path of a config file, or a TrainingProject.",
        )
    try:
        # Not strict for truss: an enum of truss becomes ours.
        strict = None if ours else False
        converted = TrainingProject.model_validate(_to_document(value), strict=strict)
    except ValidationError as error:
        raise definition_error(error, TrainingProject, where="The project to push") from error
    return value if isinstance(value, TrainingProject) else converted


def _to_document(value: object) -> object:
    """Return `value` with a dict in place of every model in it."""
    if isinstance(value, BaseModel):
        return {name: _to_document(item) for name, item in _iter_fields(value)}
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {key: _to_document(item) for key, item in items}
    if isinstance(value, list):
        return [_to_document(item) for item in cast("list[object]", value)]
    return value


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
