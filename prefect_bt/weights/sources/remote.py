"""What sources of servers share: the blocks that obstore reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.connect import Limits
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import STALL_TIMEOUT, Source

if TYPE_CHECKING:
    from obstore import GetResult

_CONNECT_TIMEOUT: Final = 10.0
_MAX_BLOCK_SECONDS: Final = 300.0
_PIECE_BYTES: Final = 256 << 10
"""Bytes of a body that are lost, at most, when it ends early."""


class RemoteSource(Source):
    """A source whose blocks are read with obstore. Its caller retries."""

    def __init__(self, source: str, stall_timeout: float = STALL_TIMEOUT) -> None:
        super().__init__(source)
        connect = min(_CONNECT_TIMEOUT, stall_timeout)
        # A block has minutes at most, however slowly its bytes arrive.
        seconds = max(_MAX_BLOCK_SECONDS, 10 * stall_timeout)
        self._limits = Limits(connect, stall_timeout, seconds, retries=0)

    @property
    def _no_answer(self) -> str:
        """Return the reason of a fault that has no other."""
        connect, read = self._limits.connect, self._limits.read
        return f"no usable answer, no connection in {connect:g} s, or no byte for {read:g} s"

    def _iter_block(
        self, file: ListedFile, answer: GetResult, tag: str, length: int
    ) -> Iterator[memoryview]:
        """Yield the bytes of an answer, at most `length`, if the file has not changed."""
        self._check_version(file, tag, answer.meta["size"])
        # As fast as `GetResult.bytes`, which holds in memory whatever the server sends.
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            yield memoryview(piece)[:length]
            length -= len(piece)
            if length < 0:  # at 0 the loop ends the body, so that the connection is kept
                return

    def _check_version(self, file: ListedFile, tag: str, size: int | None) -> None:
        if tag != (file.version_tag or tag) or size not in {file.size, None}:
            raise self._changed_error(file.path)

    def _changed_error(self, path: str) -> WeightsError:
        text = f"changed while it was read: {path} is another file now"
        return self._error(text, "Push again when nothing writes there.")
