"""One JSON codec for frozen dataclasses: plans, records, manifests, node status files.

Standard library only, so that a node needs nothing else to read its plan. Enums travel as their
values, tuples as lists, `None` as null. Unknown fields are ignored on reading, so that an older
process can read what a newer one wrote; a missing field takes its default or is an error.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def encode(value: object) -> Any:
    """Return JSON-ready values (dict, list, str, int, float, bool, None) for a dataclass tree."""
    if isinstance(value, Enum):
        return value.value
    if (names := _field_names(type(value))) is not None:
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, object]", value)
        return {str(key): encode(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in cast("list[object]", value)]
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, None for another type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def decode(kind: type[T], data: Any) -> T:
    """Return the dataclass `kind` from JSON-ready values; raise TypeError, ValueError or
    KeyError."""
    return cast("T", _decode(kind, data))


def dumps(value: object, *, indent: int | None = None) -> str:
    """Return deterministic JSON text: keys in field order, no NaN.

    A file name that is not UTF-8 has lone surrogates. They are written as escapes: the text is
    UTF-8, and is read as the same name.
    """
    text = json.dumps(encode(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def loads(kind: type[T], text: str | bytes) -> T:
    return decode(kind, json.loads(text))


def _decode(kind: Any, data: Any) -> Any:
    return data if data is None else _decoder(kind)(data)


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """Return the function that decodes values of `kind`, once per type: types are slow to read."""
    if dataclasses.is_dataclass(kind):
        return partial(_decode_dataclass, cast("type", kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = [item for item in arguments if item is not type(None)]
        return partial(_decode, inner[0]) if len(inner) == 1 else _keep
    if origin in (tuple, list):
        sequence = cast("Callable[[Iterable[Any]], Any]", origin)
        return lambda data: sequence(_decode(arguments[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        return partial(_decode_mapping, arguments[1])
    return _keep


def _keep(data: Any) -> Any:
    return data


def _decode_mapping(kind: Any, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"expected an object, got {type(data).__name__}")
    return {key: _decode(kind, item) for key, item in cast("Mapping[str, Any]", data).items()}


@cache
def _field_types(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _decode_dataclass(kind: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__}: expected an object, got {type(data).__name__}")
    given = cast("Mapping[str, Any]", data)
    fields = _field_types(kind)
    return kind(**{name: _decode(hint, given[name]) for name, hint in fields if name in given})
