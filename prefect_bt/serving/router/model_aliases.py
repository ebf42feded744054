"""Replace a model's alias in requests by the name that the server uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def replace_model_alias(body: bytes, aliases: Mapping[str, str]) -> bytes:
    """Return the request with the model's own name; any other body is returned as it is.

    >>> replace_model_alias(b'{"model": "stories", "n": 1}', {"stories": "checkpoint-10"})
    b'{"model": "checkpoint-10", "n": 1}'
    """
    if not any(_occurs(alias, body) for alias in aliases):
        return body  # most requests, which are not parsed
    try:
        request: Any = json.loads(body)
        model = request["model"]
        if not isinstance(model, str) or model not in aliases:
            return body
        return json.dumps({**request, "model": aliases[model]}, allow_nan=False).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return body


def _occurs(text: str, body: bytes) -> bool:
    escaped, plain = json.dumps(text), json.dumps(text, ensure_ascii=False)
    return escaped.encode() in body or plain.encode(errors="surrogatepass") in body
