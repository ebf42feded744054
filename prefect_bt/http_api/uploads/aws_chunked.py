"""Decode bodies with `Content-Encoding: aws-chunked`, as S3 clients send them.

    <size in hex>[;chunk-signature=...]\r\n<bytes>\r\n ... 0[;chunk-signature=...]\r\n
    [<trailer>:<value>\r\n ...]\r\n

Signatures of chunks are ignored: the caller checks a digest, or the checksum in the trailers.
"""

from __future__ import annotations

import re
from typing import Final

_MAX_LINE_BYTES: Final = 4096
_MAX_TRAILERS: Final = 16
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,8})(?:;.*)?")


class AwsChunkedDecoder:
    """Returns the payload of a body that arrives in pieces. Raises ValueError for another body."""

    def __init__(self) -> None:
        self.finished = False
        self.trailers: dict[str, str] = {}
        """Lower-case names and values."""
        self._received = bytearray()
        self._chunk_left = 0
        self._after_chunk = self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the payload that are complete with `data`."""
        self._received += data
        payload = bytearray()
        while True:
            part = self._received[: self._chunk_left]
            del self._received[: len(part)]
            payload += part
            self._chunk_left -= len(part)
            length = self._received.find(b"\r\n", 0, _MAX_LINE_BYTES)
            if self._chunk_left or length < 0:
                if len(self._received) >= _MAX_LINE_BYTES:
                    raise ValueError("a line is too long")
                return bytes(payload)
            line = bytes(self._received[:length])
            del self._received[: length + 2]
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        if self._after_chunk and not line:
            self._after_chunk = False
        elif self._in_trailers and not self.finished and len(self.trailers) < _MAX_TRAILERS:
            name, _, value = line.decode("latin-1").partition(":")
            self.finished = not line
            self.trailers[name.strip().lower()] = value.strip()
        elif not (self._after_chunk or self._in_trailers) and (found := _SIZE.fullmatch(line)):
            self._chunk_left = int(found[1], 16)
            self._after_chunk = self._chunk_left > 0
            self._in_trailers = not self._after_chunk
        else:
            raise ValueError("a chunk does not begin or end as its size says")
