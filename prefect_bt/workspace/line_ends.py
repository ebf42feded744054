"""Find scripts with Windows line ends among the files to pack: no shell of Linux can run them."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from prefect_bt.workspace.file_list import PackEntry

_SHELL_SUFFIXES: Final = (".sh", ".bash", ".zsh", ".ksh")
_EXECUTABLE_BITS: Final = 0o111
_MAX_LINE: Final = 4096
"""Bytes of a first line that are read."""
_MAX_NAMED: Final = 5
"""Names in one message."""
_RUNS: Final = (
    r"(?:^|[;&|({{\n]|\b(?:exec|nohup|sh|bash|source)\s|(?:^|\s)\.\s|\bchmod\s+\S+\s)"
    r"\s*[\"']?(?:[\w./${{}}-]*/)?{name}(?![\w.-])"
)
"""Pattern of a command that runs the file as a program or in a shell, or makes it executable."""


def warn_about_line_ends(entries: Sequence[PackEntry], commands: Sequence[str]) -> list[str]:
    """Return a sentence about scripts whose lines end in CRLF, if there are any.

    Scripts are files with the suffix of a shell, executable files with a shebang, and what a start
    command runs.
    """
    names = list(_iter_scripts(entries, "\n".join(commands)))
    if not names:
        return []
    named, more = ", ".join(map(repr, names[:_MAX_NAMED])), len(names) - _MAX_NAMED
    rest = f" and {more} more" if more > 0 else ""
    verb = "has" if len(names) == 1 else "have"
    name, suffix = posixpath.splitext(posixpath.basename(names[0]))
    pattern = f"*{suffix}" if suffix else name
    return [
        f"{named}{rest} {verb} Windows line ends (CRLF): Linux looks for an interpreter whose name "
        "ends in \\r, and a shell takes the \\r as a part of each command. Convert with "
        f"`sed -i 's/\\r$//' {shlex.join(names[:_MAX_NAMED])}`, or set `{pattern} text eol=lf` in "
        ".gitattributes."
    ]


def _iter_scripts(entries: Sequence[PackEntry], commands: str) -> Iterator[str]:
    for entry in entries:
        name = posixpath.basename(entry.name)
        shell = name.lower().endswith(_SHELL_SUFFIXES)
        executable = bool(entry.mode & _EXECUTABLE_BITS)
        run = name in commands and re.search(_RUNS.format(name=re.escape(name)), commands)
        if entry.link is not None or not (shell or executable or run):
            continue
        with suppress(OSError), entry.path.open("rb") as file:  # packing names such a file
            line = file.readline(_MAX_LINE)
            if line.endswith(b"\r\n") and (shell or run or line.startswith(b"#!")):
                yield entry.name
