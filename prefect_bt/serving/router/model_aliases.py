"""Replace a model's alias in requests by the name that the server uses. Pure.

A request is not parsed, because the objects of a body of 32 MiB can take a gigabyte. Only the
values of the outermost `model` are found and replaced in place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_KEY_END: Final = re.compile(rb"[ \t\n\r]*+:")
_BACKSLASH: Final = ord("\\")
_MAX_NAME_BYTES: Final = 4096
"""Longest key or model's name that is read, in bytes."""


def replace_model_alias(body: bytes, aliases: Mapping[str, str]) -> bytes:
    """Return the request with the model's own name; any other body is returned as it is.

    >>> replace_model_alias(b'{"model": "stories", "n": 1}', {"stories": "checkpoint-10"})
    b'{"model": "checkpoint-10", "n": 1}'
    """
    if not any(_occurs(alias, body) for alias in aliases):
        return body  # most requests, which are not searched
    if not body.lstrip(b" \t\n\r").startswith(b"{"):
        return body
    pieces, last = list[bytes](), 0
    try:
        for start, end in _iter_model_values(body):
            name = _decode_string(body, start, end)
            if name in aliases:
                pieces += body[last:start], json.dumps(aliases[name]).encode()
                last = end
    except ValueError:
        return body
    return b"".join([*pieces, body[last:]]) if pieces else body


def _occurs(text: str, body: bytes) -> bool:
    escaped, plain = json.dumps(text), json.dumps(text, ensure_ascii=False)
    return escaped.encode() in body or plain.encode(errors="surrogatepass") in body


def _iter_model_values(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each string value of `model` in the outermost object.

    Raises ValueError for broken JSON.
    """
    is_model, depth, position = False, 0, 0
    while found := _STRUCTURE.search(body, position):
        start, position = found.span()
        if found[0] != b'"':
            depth += 1 if found[0] in b"{[" else -1
            continue
        position = _string_end(body, start)
        if depth == 1 and _KEY_END.match(body, position):
            is_model = _decode_string(body, start, position) == "model"
            continue
        if depth == 1 and is_model:
            yield start, position
        is_model = False
    if depth:
        raise ValueError("brackets are left open")


def _string_end(body: bytes, start: int) -> int:
    """Return the position after the closing quote. Raises ValueError if there is none."""
    end = start
    while True:
        end = before = body.index(b'"', end + 1)
        while body[before - 1] == _BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1


def _decode_string(body: bytes, start: int, end: int) -> str:
    return str(json.loads(body[start:end])) if end - start <= _MAX_NAME_BYTES else ""
