"""Replace a model's alias in requests by the name that the server uses. Pure.

A request is not parsed, because the objects of a body of 32 MiB can take a gigabyte. Only the
values of the outermost `model` are found and replaced in place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_BLANK: Final = re.compile(rb"[ \t\n\r]*")
_BACKSLASH: Final = ord("\\")
_MAX_NAME_BYTES: Final = 4096
"""Longest key or model's name that is read, in bytes."""


class _StringToken(NamedTuple):
    """A string of the body with its quotes: `body[start:end]`, inside `depth` brackets."""

    start: int
    end: int
    depth: int


def replace_model_alias(body: bytes, aliases: Mapping[str, str]) -> bytes:
    """Return the request with the model's own name; any other body is returned as it is.

    >>> replace_model_alias(b'{"model": "stories", "n": 1}', {"stories": "checkpoint-10"})
    b'{"model": "checkpoint-10", "n": 1}'
    """
    if not any(_occurs(alias, body) for alias in aliases):
        return body  # most requests, which are not searched
    if not body.lstrip(b" \t\n\r").startswith(b"{"):
        return body
    found: list[tuple[_StringToken, str]] = []
    try:
        for text in _iter_model_values(body):
            name = _decode_string(body, text)
            if name in aliases:
                found.append((text, aliases[name]))
    except ValueError:
        return body
    if not found:
        return body
    pieces, last = list[bytes](), 0
    for text, own in found:
        pieces += body[last : text.start], json.dumps(own).encode()
        last = text.end
    return b"".join([*pieces, body[last:]])


def _occurs(text: str, body: bytes) -> bool:
    escaped, plain = json.dumps(text), json.dumps(text, ensure_ascii=False)
    return escaped.encode() in body or plain.encode(errors="surrogatepass") in body


def _iter_model_values(body: bytes) -> Iterator[_StringToken]:
    """Yield the values of the outermost object's `model`. Raises ValueError for broken JSON."""
    key = False
    for text in _iter_strings(body):
        if text.depth != 1:
            key = False
        elif _follows(body, text.end, b":"):
            key = _decode_string(body, text) == "model"
        else:
            if key:
                yield text
            key = False


def _iter_strings(body: bytes) -> Iterator[_StringToken]:
    position, depth = 0, 0
    while found := _STRUCTURE.search(body, position):
        position, sign = found.end(), found.group()
        if sign == b'"':
            position = _string_end(body, found.start())
            yield _StringToken(found.start(), position, depth)
        else:
            depth += 1 if sign in b"{[" else -1
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


def _follows(body: bytes, position: int, character: bytes) -> bool:
    blank = _BLANK.match(body, position)
    return blank is not None and body[blank.end() : blank.end() + 1] == character


def _decode_string(body: bytes, text: _StringToken) -> str:
    if text.end - text.start > _MAX_NAME_BYTES:
        return ""
    return str(json.loads(body[text.start : text.end]))
