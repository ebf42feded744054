"""Describe a packed workspace for the output of a push: its folders, size and left-out code.

The built-in ignore list drops folders with ordinary names (`lib/`, `build/`, `env/`). Those with
source files are named, so that a missing module is noticed before the job fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from prefect_bt.workspace.file_list import PackEntry
from prefect_bt.workspace.ignore import IGNORE_FILE
from prefect_bt.workspace.roots import WorkspaceLayout

LARGE_BYTES: Final = 10**9
"""Size from which push lists the largest files: data of that size belongs in an object store."""
LARGEST_SHOWN: Final = 10
_MAX_NAMED: Final = 8
"""Names in one warning."""
_MAX_SCANNED: Final = 2_000
"""Entries of one ignored folder that are searched for source files."""

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
    """The fields of the JSON document; `size_bytes` is the sum of the files.

    `largest_files` is empty up to LARGE_BYTES. `ignored_code` names entries that the built-in list
    left out although they look like code. `warnings` are sentences about the layout and the files.
    """

    root: str
    external_dirs: list[str]
    file_count: int
    size_bytes: int
    largest_files: list[dict[str, Any]]
    ignored_code: list[str]
    warnings: list[str]


def describe_contents(
    layout: WorkspaceLayout,
    entries: Sequence[PackEntry],
    ignored: Iterable[tuple[str, Path]],
    linked_folders: Sequence[str],
) -> WorkspaceContents:
    """Return the description of an archive of `entries`; reads the ignored folders."""
    total = sum(entry.size for entry in entries)
    by_size = sorted(entries, key=lambda entry: (-entry.size, entry.name))
    largest = by_size[:LARGEST_SHOWN] if total > LARGE_BYTES else []
    code = sorted(name for name, path in ignored if _looks_like_code(name, path))
    return WorkspaceContents(
        root=str(layout.root),
        external_dirs=[str(path) for path in layout.externals],
        file_count=len(entries),
        size_bytes=total,
        largest_files=[{"path": entry.name, "size_bytes": entry.size} for entry in largest],
        ignored_code=code,
        warnings=[*layout.warnings, *_warn_about_links(linked_folders), *_warn_about_code(code)],
    )


def workspace_document(contents: WorkspaceContents | None) -> dict[str, Any]:
    """Return `{"workspace": {...}}`, empty when nothing was packed here."""
    return {"workspace": asdict(contents)} if contents else {}


def _warn_about_code(names: Sequence[str]) -> list[str]:
    named, more = ", ".join(names[:_MAX_NAMED]), len(names) - _MAX_NAMED
    rest = f" and {more} more" if more > 0 else ""
    warning = (
        f"Not packed, though it looks like code: {named}{rest}. The built-in ignore list has these "
        f"names; a {IGNORE_FILE} (gitignore syntax) in the workspace root replaces that list."
    )
    return [warning] if names else []


def _warn_about_links(names: Sequence[str]) -> list[str]:
    warning = (
        f"Links to folders are not packed: {', '.join(names)}. "
        'With Workspace(workspace_root=".") their contents are.'
    )
    return [warning] if names else []


def _looks_like_code(name: str, path: Path) -> bool:
    if not name.endswith("/"):
        return path.suffix in _IGNORED_FILE_SUFFIXES and not path.name.startswith(".")
    if not _may_hold_code(path.name) or path.name.endswith(".egg-info"):
        return False
    return not any((path / marker).exists() for marker in _GENERATED_MARKERS) and _has_source(path)


def _may_hold_code(folder: str) -> bool:
    return not folder.startswith(".") and folder not in _NON_CODE_FOLDERS


def _has_source(folder: Path) -> bool:
    """Return whether one of the first entries below `folder` is a source file."""
    scanned = 0
    for _, folders, files in os.walk(folder):
        folders[:] = sorted(filter(_may_hold_code, folders))
        if any(Path(name).suffix.lower() in _SOURCE_SUFFIXES for name in files):
            return True
        scanned += len(folders) + len(files)
        if scanned > _MAX_SCANNED:
            break
    return False
