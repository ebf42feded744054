"""Where in the definitions a pydantic error points: the path, the class that owns it, its enum.

pydantic's locations hold, beside field names and indices, the tag of the union member that was
chosen and `[key]` for the key of a dict. Those are no part of the path that a user wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Tag

Location = Sequence[str | int]


@dataclass(frozen=True)
class FieldLocation:
    """`model` is the class in which the last name of `path` was looked for, `enum` what is due."""

    path: str
    model: type[BaseModel] | None
    enum: type[Enum] | None


@dataclass(frozen=True)
class _TypeOption:
    """One alternative of a type: a class, `list[...]` or `dict[...]`."""

    type: Any
    tag: str | None = None

    @property
    def model(self) -> type[BaseModel] | None:
        kind: object = self.type
        return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None

    def children(self, part: str | int) -> list[_TypeOption]:
        if self.model is not None:
            field = self.model.model_fields.get(str(part))
            return list(_iter_type_options(field.annotation)) if field else []
        if get_origin(self.type) in {list, dict}:
            return list(_iter_type_options(get_args(self.type)[-1]))
        return []


def resolve_location(model: type[BaseModel], location: Location) -> FieldLocation:
    """`resolve_location(TrainingJob, ("weights", 0, "auht"))` has the path `weights[0].auht` and
    the owner WeightsSource. Never fails: an unknown part is kept in the path as it is.
    """
    path, owner, kinds = "", None, [_TypeOption(model)]
    for part in location:
        if part == "[key]":
            continue
        tagged = [kind for kind in kinds if kind.tag is not None and kind.tag == part]
        if tagged:
            kinds = tagged
            continue
        owner = next((kind.model for kind in kinds if kind.model), None)
        keyed = isinstance(part, int) or any(get_origin(kind.type) is dict for kind in kinds)
        path += f"[{part!r}]" if keyed else f".{part}" if path else str(part)
        kinds = [inner for kind in kinds for inner in kind.children(part)]
    return FieldLocation(path, owner, next((k.type for k in kinds if _is_enum(k.type)), None))


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _iter_type_options(annotation: Any, tag: str | None = None) -> Iterator[_TypeOption]:
    if hasattr(annotation, "__metadata__"):
        tags = [note.tag for note in annotation.__metadata__ if isinstance(note, Tag)]
        yield from _iter_type_options(annotation.__origin__, tags[0] if tags else tag)
    elif get_origin(annotation) in {None, list, dict}:
        if annotation is not NoneType:
            yield _TypeOption(annotation, tag)
    else:
        for member in get_args(annotation):
            yield from _iter_type_options(member, tag)
