"""A model's other names: what a request calls it, and what its server does. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast


def with_own_name(body: bytes, aliases: Mapping[str, str]) -> bytes:
    """The same request to the model that `aliases` has for the one it names.

    What names none of them, or is no JSON object, stays as it is, byte by byte.

    >>> with_own_name(b'{"model": "stories", "n": 1}', {"stories": "checkpoint-10"})
    b'{"model": "checkpoint-10", "n": 1}'
    """
    if not any(json.dumps(alias).encode() in body for alias in aliases):
        return body  # most, without reading it
    try:
        found: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(found, dict):
        return body
    request = cast("dict[str, Any]", found)
    name = request.get("model")
    if not isinstance(name, str) or name not in aliases:
        return body
    return json.dumps({**request, "model": aliases[name]}).encode()
