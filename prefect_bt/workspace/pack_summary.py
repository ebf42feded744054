"""What a push says of the workspace it packs: where from, how much, and what was left out.

The built-in ignore list drops folders with ordinary names (`lib/`, `build/`, `env/`). Those that
hold source files are named, so that a missing module is noticed before the job fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefect_bt.workspace.ignore import IGNORE_FILE
from prefect_bt.workspace.pack_entry import IgnoredEntry, PackEntry
from prefect_bt.workspace.roots import WorkspaceLayout

LARGE_BYTES: Final = 10**9
"""Size from which push lists the largest files: data of that size belongs in an object store."""
LARGEST_SHOWN: Final = 10
_MAX_NAMED: Final = 8
"""Names in one warning."""
_MAX_SCANNED: Final = 2_000
"""Entries of one ignored folder that are looked at for source files."""

_SOURCES: Final = """
    py pyi pyx ipynb sh bash c cc cpp cu cuh h hpp rs go jl r lua java scala proto yaml yml toml
"""
_SOURCE_SUFFIXES: Final = frozenset(f".{kind}" for kind in _SOURCES.split())
_IGNORED_FILE_SUFFIXES: Final = frozenset({".py", ".so", ".spec", ".manifest"})
_NON_CODE_FOLDERS: Final = frozenset(
    {"__pycache__", "__pypackages__", "site-packages", "node_modules"}
)
_GENERATED_MARKERS: Final = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG", "CMakeCache.txt")
"""A folder with one of these is an environment or the output of a build."""


@dataclass(frozen=True, slots=True)
class WorkspaceContents:
    """`size` is the sum of the files in bytes; `largest` is empty up to LARGE_BYTES.

    `ignored_code` names what the built-in list left out although it looks like code, folders with
    a final slash. `warnings` are sentences about the layout and about links that are not packed.
    """

    root: Path
    externals: tuple[Path, ...]
    files: int
    size: int
    largest: tuple[tuple[str, int], ...] = ()
    ignored_code: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def describe_contents(
    layout: WorkspaceLayout,
    entries: Sequence[PackEntry],
    ignored: Iterable[IgnoredEntry],
    linked_folders: Sequence[str],
) -> WorkspaceContents:
    """Return what to say of an archive of `entries`; reads the ignored folders, writes nothing."""
    total = sum(entry.size for entry in entries)
    by_size = sorted(((e.name, e.size) for e in entries), key=lambda item: (-item[1], item[0]))
    code = tuple(sorted(entry.display_name for entry in ignored if _looks_like_code(entry)))
    return WorkspaceContents(
        root=layout.root,
        externals=layout.externals,
        files=len(entries),
        size=total,
        largest=tuple(by_size[:LARGEST_SHOWN]) if total > LARGE_BYTES else (),
        ignored_code=code,
        warnings=(*layout.warnings, *_link_warning(linked_folders), *_ignored_warning(code)),
    )


def workspace_document(contents: WorkspaceContents | None) -> dict[str, Any]:
    """Return `{"workspace": {...}}`, empty when nothing was packed here."""
    return {"workspace": _document(contents)} if contents else {}


def _document(contents: WorkspaceContents) -> dict[str, Any]:
    return {
        "root": str(contents.root),
        "external_dirs": [str(path) for path in contents.externals],
        "file_count": contents.files,
        "size_bytes": contents.size,
        "largest_files": [{"path": name, "size_bytes": size} for name, size in contents.largest],
        "ignored_code": list(contents.ignored_code),
        "warnings": list(contents.warnings),
    }


def _ignored_warning(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    named, more = ", ".join(names[:_MAX_NAMED]), len(names) - _MAX_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return (
        f"Not packed, though it looks like code: {named}{rest}. The built-in ignore list has these "
        f"names; a {IGNORE_FILE} (gitignore syntax) in the workspace root replaces that list.",
    )


def _link_warning(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    return (
        f"Links to folders are not packed: {', '.join(names)}. "
        'With Workspace(workspace_root=".") their contents are.',
    )


def _looks_like_code(entry: IgnoredEntry) -> bool:
    name = entry.path.name
    if name.startswith(".") or name in _NON_CODE_FOLDERS or name.endswith(".egg-info"):
        return False
    if not entry.is_folder:
        return entry.path.suffix in _IGNORED_FILE_SUFFIXES
    if any((entry.path / marker).exists() for marker in _GENERATED_MARKERS):
        return False
    return _has_source(entry.path)


def _has_source(folder: Path) -> bool:
    """Return whether one of the first entries below `folder` is a source file."""
    looked_at = 0
    for _, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _NON_CODE_FOLDERS
        )
        if any(Path(name).suffix.lower() in _SOURCE_SUFFIXES for name in files):
            return True
        looked_at += len(folders) + len(files)
        if looked_at > _MAX_SCANNED:
            return False
    return False
