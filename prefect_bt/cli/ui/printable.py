"""Text of others on a terminal: what would steer the terminal becomes a mark."""

from __future__ import annotations

from typing import Final

REPLACEMENT_CHARACTER: Final = "\N{REPLACEMENT CHARACTER}"


def replace_unprintable(text: str, *, keep: str = "") -> str:
    """`text` with every character that does not print, other than those in `keep`, replaced.

    >>> replace_unprintable("a\\x1b[2Jb")
    'a\ufffd[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else REPLACEMENT_CHARACTER for c in text)
