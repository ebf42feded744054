"""The members of a hostile archive: read by tarfile, one at a time, in bounded memory and time.

tarfile keeps every member and every global header, follows the map of a sparse file to any length,
and up to Python 3.11.9 parses an extended header in quadratic time and memory. So the headers are
bounded here and their records checked before tarfile parses them.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import IO, Any, Final, cast

from prefect_bt.workspace.limits import (
    MAX_GLOBAL_RECORDS,
    MAX_HEADER_BYTES,
    MAX_SPARSE_PIECES,
)
from prefect_bt.workspace.tar_stream import BoundedReader, corrupt_archive_error

# What tarfile raises on malformed headers, by version and field; found by fuzzing.
MALFORMED: Final = (
    tarfile.TarError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_EXTENDED: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_RECORD: Final = re.compile(rb"(\d+) ([^=]+)=")
_MAX_NUMBER_DIGITS: Final = 255
"""Digits; no name has more. tarfile searches a header once from each digit of a number."""


def iter_members(
    reader: BoundedReader, name: str
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each member; its content is read before the next. Raises WorkspaceError."""
    try:
        with reader.header(MAX_HEADER_BYTES):
            tar = tarfile.open(  # noqa: SIM115 (holds nothing but the reader, which is not its own)
                fileobj=cast("IO[bytes]", reader),
                mode="r:",
                encoding="utf-8",
                errors="surrogateescape",
                tarinfo=_CheckedMember,
            )
        pieces = 0
        while (member := _next_member(tar, reader)) is not None:
            pieces += len(cast("Any", member).sparse or ())
            if pieces > MAX_SPARSE_PIECES:
                raise tarfile.ReadError(
                    f"its sparse files have more than {MAX_SPARSE_PIECES} pieces"
                )
            yield tar, member
    except MALFORMED as error:
        raise corrupt_archive_error(name, str(error) or type(error).__name__) from error
    # tarfile takes a cut or a broken header for the end; the real end is a block of zeros.
    if reader.last_block != bytes(tarfile.BLOCKSIZE):
        raise corrupt_archive_error(name, "it is truncated or corrupt")
    reader.drain()


def _next_member(tar: tarfile.TarFile, reader: BoundedReader) -> tarfile.TarInfo | None:
    with reader.header(MAX_HEADER_BYTES):
        member = tar.next()
    kept = cast("dict[str, str]", tar.pax_headers)
    if len(kept) > MAX_GLOBAL_RECORDS:
        raise tarfile.ReadError(f"its global headers have more than {MAX_GLOBAL_RECORDS} records")
    if sum(map(len, kept.values())) > MAX_HEADER_BYTES:
        raise tarfile.ReadError("its global headers are too large")
    cast("Any", tar).members.clear()
    return member


class _CheckedMember(tarfile.TarInfo):
    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Check the records of an extended header; tarfile's own hook for subclasses."""
        if self.type in _EXTENDED:
            block = tarfile.BLOCKSIZE
            _check_records(cast("BoundedReader", tar.fileobj).peek(-(-self.size // block) * block))
        return cast("Any", super())._proc_member(tar)


def _check_records(header: bytes) -> None:
    if any(len(number) > _MAX_NUMBER_DIGITS for number in re.findall(rb"\d+", header)):
        raise tarfile.ReadError("an extended header has an invalid number")
    position = 0
    while record := _RECORD.match(header, position):
        position += int(record[1])
        if record.end() > position:
            raise tarfile.ReadError("a record of an extended header is longer than it says")
