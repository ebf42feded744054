"""Text that every process, container and pod can get: UTF-8 without zero bytes."""

from __future__ import annotations

import re
from typing import Final

MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Most bytes of one argument or variable on Linux, with the zero byte at its end."""
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")


def describe_unusable_text(text: str) -> str:
    """Return why the text cannot be carried exactly, without showing it; "" if it can.

    >>> describe_unusable_text("caf\\udce9")
    'is not UTF-8: its character 4 is the byte 0xE9'
    """
    found = _UNUSABLE.search(text)
    if found is None:
        return ""
    code, at = ord(found[0]), f"its character {found.start() + 1}"
    if not code:
        return f"is not usable: {at} is a zero byte"
    if 0xDC80 <= code <= 0xDCFF:  # as Python decodes arguments, variables and names of files
        return f"is not UTF-8: {at} is the byte 0x{code - 0xDC00:02X}"
    return f"is not UTF-8: {at} is U+{code:04X}, half of a surrogate pair"


def is_too_long(text: str) -> bool:
    """Return whether Linux refuses the text as an argument or as `NAME=value` of a variable."""
    return len(text.encode(errors="replace")) >= MAX_ARGUMENT_BYTES
