"""Turn an error of pydantic into one message: the field, the given value, what to write instead.

Values are shown only where they cannot be a secret: never those of environment variables, of
secret references, of unknown fields (which may be a misspelt `environment_variables`), and no
dicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import Enum
from types import NoneType
from typing import Any, Final, NamedTuple, cast, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from prefect_bt.errors import DefinitionError

_MAX_SHOWN: Final = 60
_SENSITIVE_NAMES: Final = ("environment_variables", "secret", "SecretReference")


class _Option(NamedTuple):
    """One alternative of a type: a class, `list[...]` or `dict[...]`; `tag` selects it."""

    type: Any
    tag: str | None = None

    def is_a(self, base: type) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, base)


class _Location(NamedTuple):
    """`owner` is the class of the last field in `path`, `enum` the type of its value."""

    path: str
    owner: type[BaseModel] | None
    enum: type[Enum] | None


def definition_error(
    error: ValidationError,
    model: type[BaseModel],
    *,
    file: str | None = None,
    line: int | None = None,
    where: str = "",
) -> DefinitionError:
    """Return every problem of `error` in one message; `where` opens it, for example `config.py:3`.

    `model` is the class that was validated; `field` and `value` are those of the first problem.
    """
    details = error.errors(include_url=False)
    places = [_resolve_location(model, one["loc"]) for one in details]
    found = [_describe(one, place) for one, place in zip(details, places, strict=True)]
    head = f"{where}: {model.__name__}" if where else model.__name__
    listed = f" {found[0]}." if len(found) == 1 else "".join(f"\n  - {one}" for one in found)
    value = details[0]["input"] if _shown_value(details[0]) else None
    what = f"{head} is not valid:{listed}"
    return DefinitionError(what, file=file, line=line, field=places[0].path, value=value)


def _describe(details: ErrorDetails, place: _Location) -> str:
    shown = _shown_value(details) or f"a value of type {type(details['input']).__name__}"
    message = _format_message(details, place, shown)
    return f"{place.path}: {message}" if place.path else message


# -- locations ------------------------------------------------------------------------------


def _resolve_location(model: type[BaseModel], location: Sequence[str | int]) -> _Location:
    """Return path and types: `("weights", 0, "auht")` is `weights[0].auht` of a WeightsSource.

    pydantic's locations also hold the tag of the chosen union member, and `[key]` for the key of a
    dict; the path leaves both out. An unknown part is kept in the path.
    """
    path, owner, options = "", None, [_Option(model)]
    for part in location:
        if part == "[key]":
            continue
        tagged = [option for option in options if option.tag == part]
        if tagged:
            options = tagged
            continue
        owner = next((option.type for option in options if option.is_a(BaseModel)), None)
        keyed = isinstance(part, int) or any(get_origin(one.type) is dict for one in options)
        path += f"[{part!r}]" if keyed else f".{part}" if path else str(part)
        options = [inner for option in options for inner in _iter_children(option, str(part))]
    return _Location(path, owner, next((one.type for one in options if one.is_a(Enum)), None))


def _iter_children(option: _Option, part: str) -> Iterator[_Option]:
    if option.is_a(BaseModel):
        field = option.type.model_fields.get(part)
        yield from _iter_options(field.annotation) if field else ()
    elif get_origin(option.type) in {list, dict}:
        yield from _iter_options(get_args(option.type)[-1])


def _iter_options(annotation: Any, tag: str | None = None) -> Iterator[_Option]:
    if hasattr(annotation, "__metadata__"):
        tags = [note.tag for note in annotation.__metadata__ if isinstance(note, Tag)]
        yield from _iter_options(annotation.__origin__, tags[0] if tags else tag)
    elif get_origin(annotation) in {None, list, dict}:
        if annotation is not NoneType:
            yield _Option(annotation, tag)
    else:
        for member in get_args(annotation):
            yield from _iter_options(member, tag)


# -- sentences ------------------------------------------------------------------------------


def _shown_value(details: ErrorDetails) -> str | None:
    """Return the value as text; None if it is a container or may be a secret."""
    names = [*details["loc"], details.get("ctx", {}).get("class_name", "")]
    if details["type"] in {"extra_forbidden", "missing", "value_error"} or any(
        word in str(name) for word in _SENSITIVE_NAMES for name in names
    ):
        return None
    value = details["input"]
    items = cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, (str, int, float, NoneType)) for item in items):
        return None
    try:
        text = repr(details["input"])
    except ValueError:  # Python formats no integer of over 4,300 digits
        return None
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _format_message(details: ErrorDetails, place: _Location, value: str) -> str:
    kind = details["type"]
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return _unknown_field(str(details["loc"][-1]), place.owner)
    if place.enum is not None and kind in {"is_instance_of", "enum"}:
        return f"{value} was given; {_expected_member(details, place.enum)}"
    return f"{value} was given; {_expected(details)}"


def _unknown_field(name: str, owner: type[BaseModel] | None) -> str:
    if owner is None:
        return "is not a known field"
    known = list(owner.model_fields)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
    return f"{owner.__name__} has no such field; {hint}"


def _expected_member(details: ErrorDetails, enum: type[Enum]) -> str:
    form = f"{enum.__name__}.{{0.name}}" if details["type"] == "is_instance_of" else '"{0.value}"'
    spelled = {str(member.value).lower(): form.format(member) for member in enum}
    value = details["input"]
    near = get_close_matches(value.lower(), spelled, n=1) if isinstance(value, str) else []
    if near:
        return f"write {spelled[near[0]]}"
    return f"write one of {', '.join(spelled.values())}"


_EXPECTED: Final[dict[str, str]] = {
    "string_type": "write a string",
    "string_unicode": "it must be UTF-8",
    "int_type": "write an integer, without quotes or a decimal point",
    "int_parsing": "write an integer",
    "int_parsing_size": "write a smaller integer",
    "int_from_float": "write a whole number",
    "bool_type": "write True or False",
    "bool_parsing": "write true or false",
    "list_type": "write a list, in square brackets",
    "dict_type": "write a dict",
    "string_too_short": "it must not be empty",
    "model_type": "write {class_name}(...) or a dict of its fields",
    "greater_than_equal": "it must be at least {ge}",
    "literal_error": "write {expected}",
}
"""Sentences by pydantic's type of the error, with names of its context."""


def _expected(details: ErrorDetails) -> str:
    if sentence := _EXPECTED.get(details["type"]):
        return sentence.format(**details.get("ctx", {}))
    return f"{details['msg'][:1].lower()}{details['msg'][1:]}"
