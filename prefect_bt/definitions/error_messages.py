"""One clear message for a definition that pydantic refused: which field, what was given, what is
right.

Values are shown only where they cannot be a secret: never those of environment variables, of
secret references, of unknown fields (which may be a misspelt `environment_variables`), and no
dicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from prefect_bt.definitions.error_locations import FieldLocation, resolve_location
from prefect_bt.errors import DefinitionError

_MAX_SHOWN: Final = 60
_SENSITIVE_NAMES: Final = ("environment_variables", "secret", "SecretReference")


@dataclass(frozen=True)
class FieldError:
    """`field` is a path such as `job.weights[0].source`; `value` is None where it is not shown."""

    field: str
    message: str
    value: object = None

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def definition_error(
    error: ValidationError,
    model: type[BaseModel],
    *,
    file: str | None = None,
    line: int | None = None,
    where: str = "",
) -> DefinitionError:
    """Every problem of `error` in one message; `where` opens it, for example `config.py:3`.

    `field` and `value` of the result are those of the first problem.
    """
    found = list_field_errors(error, model)
    head = f"{where}: {model.__name__}" if where else model.__name__
    if len(found) == 1:
        what = f"{head} is not valid: {found[0]}."
    else:
        lines = "".join(f"\n  - {problem}" for problem in found)
        what = f"{head} is not valid:{lines}"
    return DefinitionError(what, file=file, line=line, field=found[0].field, value=found[0].value)


def list_field_errors(error: ValidationError, model: type[BaseModel]) -> list[FieldError]:
    """One for each refusal, in pydantic's order; `model` is the class that was validated."""
    return [_field_error(details, model) for details in error.errors(include_url=False)]


def _field_error(details: ErrorDetails, model: type[BaseModel]) -> FieldError:
    place, value = resolve_location(model, details["loc"]), details["input"]
    shown = _format_value(value) if _is_safe_to_show(details) else None
    text = _format_message(details, place, shown or f"a value of type {type(value).__name__}")
    return FieldError(place.path, text, value if shown else None)


def _is_safe_to_show(details: ErrorDetails) -> bool:
    if details["type"] in {"extra_forbidden", "missing", "value_error"}:
        return False
    places = [str(part) for part in details["loc"]]
    places.append(str(details.get("ctx", {}).get("class_name", "")))
    return not any(word in place for word in _SENSITIVE_NAMES for place in places)


def _format_value(value: object) -> str | None:
    plain = (str, int, float, type(None))
    items = [value]
    if isinstance(value, (list, tuple)):
        items = list(cast("Sequence[object]", value))
    if not all(isinstance(item, plain) for item in items):
        return None
    text = repr(cast("object", value))
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _format_message(details: ErrorDetails, place: FieldLocation, value: str) -> str:
    kind = details["type"]
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return _unknown_field(str(details["loc"][-1]), place.model)
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
    "int_type": "write an integer, without quotes or a decimal point",
    "int_parsing": "write an integer",
    "int_from_float": "write a whole number",
    "bool_type": "write True or False",
    "bool_parsing": "write true or false",
    "list_type": "write a list, in square brackets",
    "dict_type": "write a dict",
    "string_too_short": "it must not be empty",
}


def _expected(details: ErrorDetails) -> str:
    kind = details["type"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind in {"model_type", "model_attributes_type"}:
        return f"write {context.get('class_name', 'an object')}(...) or a dict of its fields"
    if kind == "greater_than_equal":
        return f"it must be at least {context.get('ge')}"
    if kind == "literal_error":
        return f"write {context.get('expected')}"
    text = details["msg"]
    return text[:1].lower() + text[1:]
