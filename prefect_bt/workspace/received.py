"""Accept an archive that another program packed, as one that nodes can unpack."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from pathlib import Path
from typing import Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.filesystem.replacement import open_replacement
from prefect_bt.workspace.archive import PackedWorkspace
from prefect_bt.workspace.limits import MAX_WORKSPACE_BYTES, UNPACK_SLACK_BYTES, format_bytes
from prefect_bt.workspace.tar_reader import CHUNK_BYTES, corrupt_archive_error
from prefect_bt.workspace.unpack import check_archive

_GZIP: Final = b"\x1f\x8b"
_OTHER: Final = re.compile(
    rb"(?P<bzip2>BZh[1-9]1AY&SY)|(?P<xz>\xfd7zXZ\0)|(?P<zip>PK(\x03\x04|\x05\x06))"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd)"
)
_MAX_BYTES: Final = MAX_WORKSPACE_BYTES + UNPACK_SLACK_BYTES


def inspect_archive(path: Path, *, max_bytes: int = _MAX_BYTES) -> PackedWorkspace:
    """Return the facts of a tar that nodes can unpack; WorkspaceError for any other file.

    A tar with gzip compression is replaced by the plain one: nodes read no other.
    """
    with path.open("rb") as stream:
        head = stream.read(16)
    if other := _OTHER.match(head):
        raise WorkspaceError(
            f"The workspace archive is a file of {other.lastgroup}.",
            next_step="Pack it as a tar or tar.gz.",
        )
    if head.startswith(_GZIP):
        _decompress(path, max_bytes)
    with path.open("rb") as stream:
        count = check_archive(stream, path.parent)
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return PackedWorkspace(path, digest, stream.tell(), count, ())


def _decompress(path: Path, max_bytes: int) -> None:
    try:
        with gzip.open(path) as packed, open_replacement(path) as plain:
            while chunk := packed.read(CHUNK_BYTES):
                plain.write(chunk)
                if plain.tell() > max_bytes:
                    raise WorkspaceError(
                        f"The workspace archive unpacks to more than the {format_bytes(max_bytes)} "
                        "allowed.",
                        next_step="Leave out large files, and declare them as a weights source.",
                    )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise corrupt_archive_error("workspace.tar", str(error)) from error
