"""Show text of jobs with the controls that would steer the terminal made visible. Pure.

A terminal obeys what it prints: it moves the cursor, sets its title, writes the clipboard, turns
text around. Lines, names and messages of a job are its author's, or come from what it read,
so only colors of log lines reach the terminal as they are.

    C0 and DEL       their pictures, such as ␛ for ESC and ␇ for BEL
    C1, bidi, …      their numbers, such as \\x9b and \\u202e
    ESC [ … m        stays in log lines; the line ends with a reset
"""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but \t and \n, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # what turns text around
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"  # annotations, tags, halves of pairs
)
_COLOUR: Final = re.compile("\x1b\\[[0-9;:]{0,48}m")
_COLOUR_OR_UNSAFE: Final = re.compile(f"({_COLOUR.pattern})|{_UNSAFE.pattern}|\n")
_RESET: Final = "\x1b[0m"
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F


def escape_controls(text: str) -> str:
    """Return `text` without any control but line feeds and tabs.

    >>> escape_controls("a\\x1b[2Jb\\u202e")
    'a␛[2Jb\\\\u202e'
    """
    return _UNSAFE.sub(_escape_match, text) if _UNSAFE.search(text) else text


def remove_colors(text: str) -> str:
    return _COLOUR.sub("", text)


def escape_line_controls(text: str) -> str:
    """Return one line of a log: as `escape_controls`, but its colors stay, and end with it.

    A line feed inside becomes its picture, so that one line stays one.

    >>> escape_line_controls("\\x1b[31mred\\x1b]0;title\\x07")
    '\\x1b[31mred␛]0;title␇\\x1b[0m'
    """
    text = text.removesuffix("\r")
    if not _UNSAFE.search(text) and "\n" not in text:
        return text
    shown = _COLOUR_OR_UNSAFE.sub(lambda found: found[1] or _escape_match(found), text)
    return f"{shown}{_RESET}" if "\x1b" in shown and not shown.endswith(_RESET) else shown


def _escape_match(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < ord(" "):
        return chr(_PICTURES + number)
    if number == _DELETE:
        return "\N{SYMBOL FOR DELETE}"
    return found[0].encode("unicode_escape").decode()
