"""A hostile archive seen as a plain tar that only moves forward and never gives more than it may.

Decompression is done here and not by tarfile, so that every byte that comes out is counted before
it is used, and so that header sizes and offsets in the archive can neither allocate memory nor make
the reader go back (both are open holes in the tarfile of older Python versions).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, Final, cast

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.limits import format_bytes

CHUNK_BYTES: Final = 1024 * 1024
"""The most that is read at once; a larger request is a header that lies about its size."""

XZ_MEMORY_BYTES: Final = 128 * 1024**2
"""Memory limit of decompression; `xz -9` needs half of it."""

_READ_ERRORS: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)

_OPENERS: Final[dict[bytes, Callable[[IO[bytes]], object]]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    b"BZh": lambda stream: bz2.BZ2File(stream, "rb"),
    b"\xfd7zXZ\x00": lambda stream: _XzReader(stream),  # noqa: PLW0108 (defined below)
}
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"
_MAX_MAGIC_BYTES: Final = 6
_MAX_SHOWN_LENGTH: Final = 300


class BoundedReader:
    """Read, tell and forward seek over at most `max_bytes`; `name` is for messages.

    Every method raises WorkspaceError when the limit is passed or the bytes cannot be read.
    """

    def __init__(self, stream: IO[bytes], *, name: str, max_bytes: int) -> None:
        self._stream, self._name, self._max_bytes = stream, name, max_bytes
        self._position = 0
        self._header_left: int | None = None
        self._peeked = b""
        self.last_block = b""

    @contextmanager
    def header(self, max_bytes: int) -> Generator[None]:
        """Bound what is read in this block; skipped bytes do not count."""
        self._header_left = max_bytes
        try:
            yield
        finally:
            self._header_left = None

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end. Kept as `last_block` until the next call."""
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

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or position < self._position:
            raise corrupt_archive_error(self._name, "a header points backwards")
        while self._position < position and self._read_exactly(
            min(CHUNK_BYTES, position - self._position)
        ):
            pass
        return self._position

    def drain(self) -> None:
        """Read to the end, which is where the compressed formats keep their checksum."""
        while self._read_exactly(CHUNK_BYTES):
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
        except _READ_ERRORS as error:
            raise corrupt_archive_error(self._name, str(error) or type(error).__name__) from error
        self._position += len(part)
        if self._position > self._max_bytes:
            raise too_large_error(self._name, self._max_bytes)
        return part


def open_decompressed(stream: IO[bytes], name: str) -> IO[bytes]:
    """`stream` without its compression (gzip, bzip2, xz or none), told by its first bytes."""
    try:
        head = _read_head(stream)
    except OSError as error:
        raise corrupt_archive_error(name, error.strerror or str(error)) from error
    whole = cast("IO[bytes]", _PrefixedStream(head, stream))
    if head.startswith(_ZSTANDARD):
        raise WorkspaceError(
            f"The workspace archive {name!r} is compressed with Zstandard, which is not supported.",
            next_step="Pack it as a plain tar, or with gzip, bzip2 or xz.",
            path=name,
        )
    for magic, opener in _OPENERS.items():
        if head.startswith(magic):
            return cast("IO[bytes]", opener(whole))
    return whole


def corrupt_archive_error(name: str, why: str) -> WorkspaceError:
    return WorkspaceError(
        f"The workspace archive {name!r} is corrupt or not a tar: {why}.",
        next_step="Push the job again to pack and upload it anew.",
        path=name,
    )


def too_large_error(name: str, max_bytes: int) -> WorkspaceError:
    return WorkspaceError(
        f"The workspace archive {name!r} unpacks to more than the {format_bytes(max_bytes)} "
        "allowed.",
        next_step="Leave out large files, and declare them as a weights source instead.",
        path=name,
    )


def spelled(name: str) -> str:
    """Return a member's name for a message: quoted, escaped, and of a bounded length."""
    return repr(name if len(name) <= _MAX_SHOWN_LENGTH else f"{name[:_MAX_SHOWN_LENGTH]}…")


def refused(name: str, why: str, next_step: str = "") -> WorkspaceError:
    return WorkspaceError(
        f"The archive member {spelled(name)} {why}.",
        next_step=next_step or "Pack the workspace again from a folder you trust.",
        path=name,
    )


def _read_head(stream: IO[bytes]) -> bytes:
    head = b""
    while len(head) < _MAX_MAGIC_BYTES and (part := stream.read(_MAX_MAGIC_BYTES - len(head))):
        head += part
    return head


class _PrefixedStream(io.RawIOBase):
    """`head` again, then the rest of `stream`, which need not be seekable."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if not self._head:
            return self._stream.read(size)
        end = len(self._head) if size < 0 else size
        part, self._head = self._head[:end], self._head[end:]
        return part


class _XzReader(io.RawIOBase):
    """Concatenated xz streams. lzma.LZMAFile would allocate what the archive asks for: 4 GiB."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = _xz_decoder()

    def read(self, size: int = -1, /) -> bytes:
        while True:
            if self._decoder.eof:
                fed = self._decoder.unused_data or self._stream.read(CHUNK_BYTES)
                if not fed:
                    return b""
                self._decoder = _xz_decoder()
            else:
                fed = self._stream.read(CHUNK_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not fed:
                    raise EOFError("the compressed data ends before its end mark")
            if part := self._decoder.decompress(fed, size):
                return part


def _xz_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
