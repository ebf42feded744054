"""Select the files of a source by patterns.

Patterns are Unix shell globs where `*` stays within one folder: `*.safetensors` matches the top
level only, `**/` recurses. `allow_patterns` selects, then `ignore_patterns` removes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, quote, validate_paths
from prefect_bt.weights.url_redaction import redact_url

_WILDCARDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PIECE: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]+\]|[^*?\[]+|\[")


def select_files(plan: WeightsPlan, listing: Listing) -> list[ListedFile]:
    """Return the files that the plan's patterns select, in the listing's order.

    WeightsError for no file, for a path of two different files, or for one that cannot be mounted.
    """
    source = redact_url(plan.source)
    files = {file.path: file for file in listing.files}
    for file in listing.files:
        if files[file.path] != file:
            what = f"{source} lists {quote(file.path)} twice, and not the same file."
            hint = "Nothing was downloaded. Report the listing to the owner of the source."
            raise WeightsError(what, source=plan.source, next_step=hint)
    selected = filter_paths(files, allow=plan.allow_patterns, ignore=plan.ignore_patterns)
    if not selected:
        reason, hint = "it is empty", "Check the source."
        if files:
            reason = f"the patterns match none of its {len(files)} files"
            hint = "`*` matches the top level only; `**/*` matches every folder."
        raise WeightsError(f"{source}: {reason}.", source=plan.source, next_step=hint)
    validate_paths(source, selected)
    return [files[path] for path in selected]


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
