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
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def encode(value: object) -> Any:
    """Return JSON-ready values (dict, list, str, int, float, bool, None) for a dataclass tree."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, object]", value)
        return {str(key): encode(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in cast("list[object]", value)]
    return value


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


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, data: Any) -> Any:
    if data is None or kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(cast("type", kind), data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return _decode_generic(kind, data)


def _decode_generic(kind: Any, data: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = [item for item in arguments if item is not type(None)]
        return _decode(inner[0], data) if len(inner) == 1 else data
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in data)
    if origin is list:
        return [_decode(arguments[0], item) for item in data]
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise TypeError(f"expected an object, got {type(data).__name__}")
        data = cast("Mapping[str, Any]", data)
        return {key: _decode(arguments[1], item) for key, item in data.items()}
    return data


def _decode_dataclass(kind: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__}: expected an object, got {type(data).__name__}")
    given = cast("Mapping[str, Any]", data)
    hints = _hints(kind)
    values = {
        f.name: _decode(hints[f.name], given[f.name])
        for f in dataclasses.fields(kind)
        if f.name in given
    }
    return kind(**values)
