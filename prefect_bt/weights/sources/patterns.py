"""Select the files of a source by patterns. Pure.

Patterns are Unix shell globs where `*` stays within one folder: `*.safetensors` matches the top
level only, `**/` recurses. `allow_patterns` selects, then `ignore_patterns` removes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def filter_paths(
    paths: Iterable[str],
    *,
    allow: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> list[str]:
    """The wanted paths, in the order given.

    >>> filter_paths(["a.bin", "sub/b.bin"], allow=["*.bin"])
    ['a.bin']
    >>> filter_paths(["a.bin", "sub/b.bin"], allow=["**/*.bin"])
    ['a.bin', 'sub/b.bin']
    """
    allowed = [_compile(pattern) for pattern in allow] if allow is not None else None
    ignored = [_compile(pattern) for pattern in ignore or ()]
    return [
        path
        for path in paths
        if (allowed is None or any(p.fullmatch(path) for p in allowed))
        and not any(p.fullmatch(path) for p in ignored)
    ]


_PIECE = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]+\]|[^*?\[]+|\[")


def _compile(pattern: str) -> re.Pattern[str]:
    if pattern.endswith("/"):
        pattern += "**"  # a folder: everything in it
    return re.compile("".join(_translate(piece) for piece in _PIECE.findall(pattern)), re.DOTALL)


def _translate(piece: str) -> str:
    match piece:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case _ if piece.startswith("[") and len(piece) > 1:
            return _translate_class(piece[1:-1])
        case _:
            return re.escape(piece)


def _translate_class(inner: str) -> str:
    negated = inner.startswith("!")
    signs = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[negated:])
    translated = f"(?!/)[^{signs}]" if negated else f"(?!/)[{signs}]"
    try:
        re.compile(translated)
    except re.error:  # a range from high to low holds nothing
        return "[^/]" if negated else "(?!)"
    return translated
