"""Write a workspace as one uncompressed tar, with the same bytes for the same files.

    <target>                  published by rename once it is complete and within the limit
    .<target>.<random>.tmp    beside it while it is written; removed on any failure

Members are files and links only, sorted by name, without an owner, dated 1970; mode bits are kept.
The content is streamed from the user's folder without an intermediate copy. Rules:
docs/compatibility.md, Workspace.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.file_list import collect_entries
from prefect_bt.workspace.limits import MAX_WORKSPACE_BYTES
from prefect_bt.workspace.pack_entry import PackEntry, make_stamp
from prefect_bt.workspace.pack_summary import WorkspaceContents, describe_contents
from prefect_bt.workspace.roots import WorkspaceLayout
from prefect_bt.workspace.validation import check_not_empty, check_size, too_large_error

_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackedWorkspace:
    """`sha256` is the hex digest of the file; `skipped` says what was left out and why.

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
    return packed.contents.root if packed and packed.contents else None


def pack_workspace(
    layout: WorkspaceLayout, target: Path, *, max_bytes: int = MAX_WORKSPACE_BYTES
) -> PackedWorkspace:
    """Write the tar of `layout` to `target`, replacing a file there; its folder must exist.

    Raises WorkspaceError, and leaves nothing behind, when there is nothing to pack, when more than
    `max_bytes` would result (refused before anything is written), when a file cannot be read, or
    when one changes while it is packed.
    """
    collection = collect_entries(layout, exclude=target)
    check_not_empty(collection, layout)
    check_size(collection.entries, max_bytes)
    with _open_atomic(target) as staged:
        sink = _HashingWriter(staged, target)
        write_archive(collection.entries, cast("IO[bytes]", sink))
        if sink.tell() > max_bytes:
            raise too_large_error(sink.tell(), collection.entries, max_bytes)
    contents = describe_contents(
        layout, collection.entries, collection.ignored, collection.linked_folders
    )
    size, count = sink.tell(), len(collection.entries)
    return PackedWorkspace(target, sink.sha256, size, count, collection.skipped, contents)


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
            if entry.link is None:
                _add_file(tar, entry)
            else:
                tar.addfile(_header(entry))


class _HashingWriter:
    """What tarfile writes to: passes bytes on, and knows their digest and number."""

    def __init__(self, under: IO[bytes], target: Path) -> None:
        self._under, self._target = under, target
        self._digest, self._count = hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def tell(self) -> int:
        return self._count

    def write(self, data: bytes) -> int:
        try:
            self._under.write(data)
        except OSError as error:
            # Told apart here from a failure to read the user's file.
            raise _write_error(self._target, error) from error
        self._digest.update(data)
        self._count += len(data)
        return len(data)


def _header(entry: PackEntry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry.name)
    info.size, info.mode = entry.size, entry.mode
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    return info


def _add_file(tar: tarfile.TarFile, entry: PackEntry) -> None:
    try:
        with entry.path.open("rb") as source:
            _check_unchanged(entry, os.fstat(source.fileno()))
            tar.addfile(_header(entry), source)
            _check_unchanged(entry, os.fstat(source.fileno()))
    except FileNotFoundError as error:
        raise _changed_error(entry, "vanished") from error
    except OSError as error:
        if error.errno is None:  # tarfile's own: the file became shorter than its header says
            raise _changed_error(entry, "changed") from error
        raise WorkspaceError(
            f"{str(entry.path)!r} cannot be packed: {error.strerror or error}.",
            next_step="Make it readable, or name it in .truss_ignore.",
            path=str(entry.path),
        ) from error


def _check_unchanged(entry: PackEntry, state: os.stat_result) -> None:
    if make_stamp(state) != entry.stamp:
        raise _changed_error(entry, "changed")


def _changed_error(entry: PackEntry, verb: str) -> WorkspaceError:
    return WorkspaceError(
        f"{str(entry.path)!r} {verb} while the workspace was packed.",
        next_step="Stop what writes it and push again, or name it in .truss_ignore.",
        path=str(entry.path),
    )


@contextmanager
def _open_atomic(target: Path) -> Generator[IO[bytes], None, None]:
    """An open file that becomes `target` if the block succeeds and is gone if it does not."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    except OSError as error:
        raise _write_error(target, error) from error
    staged = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        staged.replace(target)
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        staged.unlink(missing_ok=True)


def _write_error(target: Path, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"The archive {str(target)!r} cannot be written: {error.strerror or error}.",
        next_step="Choose a writable place with enough room.",
        path=str(target),
    )
