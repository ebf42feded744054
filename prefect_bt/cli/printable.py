"""Text of others on a terminal: what would steer the terminal becomes a mark."""

from __future__ import annotations

from typing import Final

MARK: Final = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, *, keep: str = "") -> str:
    """`text` with every character that does not print, other than those in `keep`, replaced.

    >>> printable("a\\x1b[2Jb")
    'a\ufffd[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else MARK for c in text)
