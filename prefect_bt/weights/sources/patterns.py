"""Select the files of a source by patterns.

Patterns are Unix shell globs where `*` stays within one folder: `*.safetensors` matches the top
level only, `**/` recurses. `allow_patterns` selects, then `ignore_patterns` removes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, is_mountable, quote
from prefect_bt.weights.sources.protocol import source_error

_WILDCARDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PIECE: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]+\]|[^*?\[]+|\[")


def select_files(plan: WeightsPlan, listing: Listing) -> list[ListedFile]:
    """Return the files that the plan's patterns select, in the listing's order.

    WeightsError for no file, for a path of two different files, or for one that cannot be mounted.
    """
    files = {file.path: file for file in listing.files}
    for file in listing.files:
        if files[file.path] != file:
            text = f"lists {quote(file.path)} twice, and not the same file"
            hint = "Nothing was downloaded. Report the listing to the owner of the source."
            raise source_error(plan.source, text, hint)
    selected = filter_paths(files, allow=plan.allow_patterns, ignore=plan.ignore_patterns)
    if not selected:
        reason = f"the patterns match none of its {len(files)} files" if files else "it is empty"
        hint = "`*` matches the top level only; `**/*` matches every folder."
        raise source_error(plan.source, f"has no files to mirror: {reason}", hint)
    _validate_paths(plan.source, selected)
    return [files[path] for path in selected]


def _validate_paths(source: str, paths: Sequence[str]) -> None:
    """Raise WeightsError for a path that is outside the mount, impossible, or in another file."""
    for path in paths:
        if not is_mountable(path):
            text = f"lists a file named {quote(path)}, which cannot be a path below the mount"
            hint = (
                "Nothing was downloaded. Exclude it with ignore_patterns, or report it to "
                "the owner of the source."
            )
            raise source_error(source, text, hint)
    # No name contains NUL, so the paths in a folder follow the folder directly.
    ordered = sorted(paths, key=lambda path: path.replace("/", "\0"))
    for above, below in pairwise(ordered):
        if below.startswith(f"{above}/"):
            text = f"lists {quote(above)} as a file and {quote(below)} as a file in it"
            raise source_error(source, text, "Exclude one of them with ignore_patterns.")


def filter_paths(
    paths: Iterable[str], *, allow: Sequence[str] | None = None, ignore: Sequence[str] | None = None
) -> list[str]:
    """Return the selected paths, in the order given.

    >>> filter_paths(["a.bin", "sub/b.bin"], allow=["*.bin"])
    ['a.bin']
    >>> filter_paths(["a.bin", "sub/b.bin"], allow=["**/*.bin"])
    ['a.bin', 'sub/b.bin']
    """
    allowed = [_compile(pattern) for pattern in (["**"] if allow is None else allow)]
    ignored = [_compile(pattern) for pattern in ignore or ()]
    return [
        path
        for path in paths
        if any(p.fullmatch(path) for p in allowed) and not any(p.fullmatch(path) for p in ignored)
    ]


def _compile(pattern: str) -> re.Pattern[str]:
    if pattern.endswith("/"):
        pattern += "**"  # a folder: everything in it
    return re.compile("".join(map(_translate, _PIECE.findall(pattern))), re.DOTALL)


def _translate(piece: str) -> str:
    if piece in _WILDCARDS:
        return _WILDCARDS[piece]
    text = fnmatch.translate(piece)[len("(?s:") : -len(r")\Z")]
    return f"(?!/){text}" if piece.startswith("[") else text
