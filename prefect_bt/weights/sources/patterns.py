"""Select the files of a source by patterns.

Patterns are Unix shell globs where `*` stays within one folder: `*.safetensors` matches the top
level only, `**/` recurses. `allow_patterns` selects, then `ignore_patterns` removes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, quote, validate_paths
from prefect_bt.weights.url_redaction import redact_url


def select_files(plan: WeightsPlan, listing: Listing) -> list[ListedFile]:
    """Return the files that the plan's patterns select, in the listing's order.

    Raise WeightsError for an empty selection, for a path that is listed twice with different
    contents, and for a path that cannot be mounted.
    """
    source = redact_url(plan.source)
    files = {file.path: file for file in listing.files}
    for file in listing.files:
        if files[file.path] != file:
            raise WeightsError(
                f"{source} lists {quote(file.path)} twice, and not the same file.",
                source=plan.source,
                next_step="Nothing was downloaded. Report the listing to the owner of the source.",
            )
    selected = filter_paths(files, allow=plan.allow_patterns, ignore=plan.ignore_patterns)
    if not selected:
        reason = f"the patterns match none of its {len(files)} files" if files else "it is empty"
        raise WeightsError(
            f"{source}: {reason}.",
            source=plan.source,
            next_step="`*` matches the top level only; `**/*` matches every folder."
            if files
            else "Check the source.",
        )
    validate_paths(source, selected)
    return [files[path] for path in selected]


def filter_paths(
    paths: Iterable[str],
    *,
    allow: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> list[str]:
    """Return the selected paths, in the order given.

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
