"""Read the members of a hostile tar one at a time, in bounded memory and time.

tarfile keeps every member and every global header, follows the map of a sparse file to any length,
allocates what a header asks for, goes back where a header says so, and up to Python 3.11.9 parses
an extended header in quadratic time and memory. So it reads through `_BoundedReader`, which only
moves forward, and the records of extended headers are checked before tarfile parses them.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, cast

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.limits import MAX_GLOBAL_RECORDS, MAX_HEADER_BYTES, format_bytes

CHUNK_BYTES: Final = 1024 * 1024
"""The most that is read at once; a larger request is a header with a wrong size."""

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
_MAX_SHOWN_LENGTH: Final = 300


def iter_members(
    stream: IO[bytes], name: str, max_bytes: int
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each member of the plain tar `stream`; read its content before the next.

    `max_bytes` bounds the archive; `name` is for messages. Raises WorkspaceError.
    """
    reader = _BoundedReader(stream, name, max_bytes)
    try:
        with reader.header():
            tar = tarfile.open(  # noqa: SIM115 (holds nothing but the reader, which is not its own)
                fileobj=cast("IO[bytes]", reader),
                mode="r:",
                encoding="utf-8",
                errors="surrogateescape",
                tarinfo=_CheckedMember,
            )
        while (member := _next_member(tar, reader)) is not None:
            yield tar, member
    except MALFORMED as error:
        raise corrupt_archive_error(name, str(error) or type(error).__name__) from error
    # tarfile takes a cut or a broken header for the end; the real end is a block of zeros.
    if reader.last_block != bytes(tarfile.BLOCKSIZE):
        raise corrupt_archive_error(name, "it is truncated or corrupt")


def _next_member(tar: tarfile.TarFile, reader: _BoundedReader) -> tarfile.TarInfo | None:
    with reader.header():
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
            _check_records(cast("_BoundedReader", tar.fileobj).peek(-(-self.size // block) * block))
        return cast("Any", super())._proc_member(tar)


def _check_records(header: bytes) -> None:
    if any(len(number) > _MAX_NUMBER_DIGITS for number in re.findall(rb"\d+", header)):
        raise tarfile.ReadError("an extended header has an invalid number")
    position = 0
    while record := _RECORD.match(header, position):
        position += int(record[1])
        if record.end() > position:
            raise tarfile.ReadError("a record of an extended header is longer than it says")


class _BoundedReader:
    """Read, tell and forward seek over at most `max_bytes`; `name` is for messages.

    Every method raises WorkspaceError when the limit is passed or the bytes cannot be read.
    """

    def __init__(self, stream: IO[bytes], name: str, max_bytes: int) -> None:
        self._stream, self._name, self._max_bytes = stream, name, max_bytes
        self._position = 0
        self._header_left: int | None = None
        self._peeked = b""
        self.last_block = b""

    @contextmanager
    def header(self) -> Generator[None]:
        """Bound the bytes read in this block by MAX_HEADER_BYTES; skipped bytes do not count."""
        self._header_left = MAX_HEADER_BYTES
        try:
            yield
        finally:
            self._header_left = None

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end; kept as `last_block` until the next call."""
        if not 0 <= size <= CHUNK_BYTES:
            raise corrupt_archive_error(self._name, "a header asks for an impossible size")
        if self._peeked:
            self.last_block, self._peeked = self._peeked, b""
            return self.last_block
        if self._header_left is not None:
            self._header_left -= size
            if self._header_left < 0:
                raise corrupt_archive_error(self._name, "the headers of one member are too large")
        self.last_block = self._read_exactly(size)
        return self.last_block

    def peek(self, size: int) -> bytes:
        """Return what the next read returns, which must be of the same size."""
        self._peeked = self.read(size)
        return self._peeked

    def seek(self, position: int) -> None:
        """Skip to `position`, or to the end of a shorter archive."""
        if position < self._position:
            raise corrupt_archive_error(self._name, "a header points backwards")
        while self._read_exactly(min(CHUNK_BYTES, position - self._position)):
            pass

    def _read_exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size and (part := self._read_once(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _read_once(self, size: int) -> bytes:
        try:
            part = self._stream.read(size)
        except OSError as error:
            raise corrupt_archive_error(self._name, error.strerror or str(error)) from error
        self._position += len(part)
        if self._position > self._max_bytes:
            raise WorkspaceError(
                f"The workspace archive {self._name!r} unpacks to more than the "
                f"{format_bytes(self._max_bytes)} allowed.",
                next_step="Leave out large files, and declare them as a weights source instead.",
                path=self._name,
            )
        return part


def corrupt_archive_error(name: str, why: str) -> WorkspaceError:
    """Return the error for an archive that cannot be read."""
    return WorkspaceError(
        f"The workspace archive {name!r} is corrupt or not a tar: {why}.",
        next_step="Push the job again to pack and upload it anew.",
        path=name,
    )


def quote_name(name: str) -> str:
    """Return a member's name for a message: quoted, escaped, and of a bounded length."""
    return repr(name if len(name) <= _MAX_SHOWN_LENGTH else f"{name[:_MAX_SHOWN_LENGTH]}…")


def refused_member(name: str, why: str) -> WorkspaceError:
    """Return the error for a member that must not be unpacked; `why` follows its name."""
    return WorkspaceError(
        f"The archive member {quote_name(name)} {why}.",
        next_step="Pack the workspace again from a folder you trust.",
        path=name,
    )
