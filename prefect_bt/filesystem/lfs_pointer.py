"""Recognize a git-LFS pointer: a small text that a clone has in place of a large file.

version https://git-lfs.github.com/spec/v1
oid sha256:4d7a…
size 4900000000
"""

from __future__ import annotations

import re
from typing import Final

from prefect_bt.text.quantities import format_size

MAX_POINTER_BYTES: Final = 1024
_VERSION: Final = b"version https://git-lfs.github.com/spec/v1"
_SIZE: Final = re.compile(rb"^size (\d{1,18})\s*$", re.MULTILINE)


def describe_pointer(content: bytes) -> str:
    """Return `a git-LFS pointer to 4.9 GB` if the content is one; "" otherwise.

    >>> describe_pointer(b"version https://git-lfs.github.com/spec/v1\\nsize 7\\n")
    'a git-LFS pointer to 7 B'
    """
    if len(content) >= MAX_POINTER_BYTES or not content.startswith(_VERSION):
        return ""
    size = _SIZE.search(content)
    return f"a git-LFS pointer to {format_size(int(size[1]))}" if size else "a git-LFS pointer"
