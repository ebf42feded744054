"""Write a workspace as one uncompressed tar, with the same bytes for the same files.

The archive replaces the target once it is complete and within the limit. Members are files and
links only, sorted by name, without an owner, dated 1970; mode bits are kept. The content is
streamed from the user's folder without an intermediate copy. Rules: docs/compatibility.md,
Workspace.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from prefect_bt.errors import WorkspaceError
from prefect_bt.filesystem.replacement import open_replacement
from prefect_bt.workspace.file_list import (
    CollectedEntries,
    PackEntry,
    collect_entries,
    make_stamp,
    read_error,
)
from prefect_bt.workspace.limits import MAX_WORKSPACE_BYTES, MAX_WORKSPACE_ENTRIES, format_bytes
from prefect_bt.workspace.line_ends import warn_about_line_ends
from prefect_bt.workspace.pack_summary import WorkspaceContents, describe_contents
from prefect_bt.workspace.pointers import warn_about_pointers
from prefect_bt.workspace.roots import WorkspaceLayout

_CHUNK_BYTES: Final = 1024 * 1024
_TOO_LARGE_STEP: Final = (
    "Leave out large files (.truss_ignore, exclude_dirs), and declare them as a weights source "
    "instead."
)


@dataclass(frozen=True, slots=True)
class PackedWorkspace:
    """`sha256` is the hex digest of the file; `skipped` names each left-out entry and the reason.

    `contents` is None for an archive that was not packed here, but taken from the store.
    """

    path: Path
    sha256: str
    size_bytes: int
    file_count: int
    skipped: tuple[str, ...]
    contents: WorkspaceContents | None = None


def packed_folder(packed: PackedWorkspace | None) -> Path | None:
    """Return the folder that was packed here; None for no archive, or one from the store."""
    return Path(packed.contents.root) if packed and packed.contents else None


def pack_workspace(
    layout: WorkspaceLayout,
    target: Path,
    *,
    commands: Sequence[str] = (),
    max_bytes: int = MAX_WORKSPACE_BYTES,
) -> PackedWorkspace:
    """Write the tar of `layout` to `target`, replacing a file there; its folder must exist.

    `commands`: start commands, to warn about the scripts that they run.

    Raises WorkspaceError, and leaves nothing behind, when there is nothing to pack, when more than
    `max_bytes` would result (refused before anything is written), when weights are git-LFS
    pointers, when a file cannot be read, or when one changes while it is packed.
    """
    found = collect_entries(layout)
    _check_not_empty(found, layout)
    _check_limits(found.entries, max_bytes)
    warnings = warn_about_pointers(found.entries)
    warnings += warn_about_line_ends(found.entries, commands)
    try:
        with open_replacement(target) as staged:
            os.fchmod(staged.fileno(), 0o600)
            sink = _HashingWriter(staged, target)
            write_archive(found.entries, cast("IO[bytes]", sink))
            if sink.tell() > max_bytes:
                raise _too_large_error(sink.tell(), found.entries, max_bytes)
    except OSError as error:
        raise _write_error(target, error) from error
    contents = describe_contents(layout, found.entries, found.ignored, found.linked_folders)
    contents.warnings.extend(warnings)
    size, count, skipped = sink.tell(), len(found.entries), tuple(found.skipped)
    return PackedWorkspace(target, sink.sha256, size, count, skipped, contents)


def write_archive(entries: Iterable[PackEntry], sink: IO[bytes]) -> None:
    """Append `entries` in their order and close the tar (not `sink`).

    Raises WorkspaceError naming the file when one is no longer what was collected.
    """
    with tarfile.TarFile(
        fileobj=sink,
        mode="w",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        copybufsize=_CHUNK_BYTES,
    ) as tar:
        for entry in entries:
            header = tarfile.TarInfo(entry.name)
            header.size, header.mode = entry.size, entry.mode
            if entry.link is None:
                _add_file(tar, header, entry)
            else:
                header.type, header.linkname = tarfile.SYMTYPE, entry.link
                tar.addfile(header)


class _HashingWriter:
    """The file that tarfile writes to, with the digest and the number of the bytes written."""

    def __init__(self, file: IO[bytes], target: Path) -> None:
        self._file, self._target = file, target
        self._digest, self._count = hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def tell(self) -> int:
        return self._count

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            # Translated here to distinguish it from a failure to read the user's file.
            raise _write_error(self._target, error) from error
        self._digest.update(data)
        self._count += len(data)
        return len(data)


def _add_file(tar: tarfile.TarFile, header: tarfile.TarInfo, entry: PackEntry) -> None:
    try:
        with entry.path.open("rb") as source:
            _check_unchanged(entry, os.fstat(source.fileno()))
            tar.addfile(header, source)
            _check_unchanged(entry, os.fstat(source.fileno()))
    except FileNotFoundError as error:
        raise _changed_error(entry, "vanished") from error
    except OSError as error:
        if error.errno is None:  # tarfile's own: the file became shorter than its header says
            raise _changed_error(entry, "changed") from error
        raise read_error(str(entry.path), error) from error


def _check_unchanged(entry: PackEntry, state: os.stat_result) -> None:
    if make_stamp(state) != entry.stamp:
        raise _changed_error(entry, "changed")


def _changed_error(entry: PackEntry, verb: str) -> WorkspaceError:
    return WorkspaceError(
        f"{str(entry.path)!r} {verb} while the workspace was packed.",
        next_step="Stop what writes it and push again, or name it in .truss_ignore.",
        path=str(entry.path),
    )


def _write_error(target: Path, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"The archive {str(target)!r} cannot be written: {error.strerror or error}.",
        next_step="Choose a writable place with enough room.",
        path=str(target),
    )


def _check_not_empty(found: CollectedEntries, layout: WorkspaceLayout) -> None:
    if found.entries:
        return
    skipped = "; ".join(found.skipped[:5])
    why = f"everything in it was skipped ({skipped})" if skipped else "it holds no files"
    raise WorkspaceError(
        f"There is nothing to pack in {str(layout.root)!r}: {why}.",
        next_step="Put the training files there, or correct .truss_ignore or exclude_dirs.",
        path=str(layout.root),
    )


def _check_limits(entries: Sequence[PackEntry], max_bytes: int) -> None:
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        raise _too_large_error(total, entries, max_bytes)
    if len(entries) > MAX_WORKSPACE_ENTRIES:
        raise WorkspaceError(
            f"The workspace has {len(entries)} files; {MAX_WORKSPACE_ENTRIES} are allowed.",
            next_step=_TOO_LARGE_STEP,
        )


def _too_large_error(total: int, entries: Sequence[PackEntry], max_bytes: int) -> WorkspaceError:
    """Return the error for `total` bytes; it names the largest top-level entries and files."""
    tops, files = Counter[str](), Counter[str]()
    for entry in entries:
        top, slash, _ = entry.name.partition("/")
        tops[top + slash] += entry.size
        if slash:
            files[entry.name] = entry.size
    return WorkspaceError(
        f"The workspace is {format_bytes(total)}; at most {format_bytes(max_bytes)} are allowed. "
        f"Largest: {_format_largest(tops)}."
        + (f" Largest files: {_format_largest(files)}." if files else ""),
        next_step=_TOO_LARGE_STEP,
    )


def _format_largest(sizes: Counter[str]) -> str:
    return ", ".join(f"{name!r} ({format_bytes(size)})" for name, size in sizes.most_common(3))
