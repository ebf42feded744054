"""Reads and errors that the Hub and https sources have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final, Self

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.faults import FaultKind
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.http_client import HttpClient, iter_block
from prefect_bt.weights.sources.http_faults import HttpFault
from prefect_bt.weights.sources.protocol import (
    STALL_TIMEOUT,
    RangesUnsupported,
    SourceRequest,
    TransientError,
)
from prefect_bt.weights.sources.secret_fields import parse_token

if TYPE_CHECKING:
    import httpx
    from obstore import GetResult

_KEPT: Final = "what is here already is kept."


class HttpSource:
    """A source whose files are read over HTTP."""

    detects_changes = True
    _setting: ClassVar = "the URL"
    """What contains the server's address, for messages."""

    def __init__(
        self, source: str, token: str | None, *, stall_timeout: float = STALL_TIMEOUT
    ) -> None:
        self._source, self._shown = source, source.partition("?")[0]
        self._client = HttpClient(token, stall_timeout)
        self._access = "Give auth with a token that may read it."
        if token:
            self._access = "Check that its token is valid and may read it."

    @classmethod
    def open(cls, request: SourceRequest) -> Self:
        secret = request.secret
        token = parse_token(request.plan, secret) if secret else None
        return cls(request.plan.source, token, stall_timeout=request.stall_timeout)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        if not length or file.size == 0:
            return
        with self._translate_errors(file.path):
            if length < 0 and start == 0:
                with self._client.get(self._file_url(file)) as answer:
                    self._check_version(file, answer)
                    yield from answer.iter_raw()
            else:
                end = (file.size or 0) if length < 0 else start + length
                yield from iter_block(self._get_block(file, start, end), end - start)

    def _file_url(self, file: ListedFile) -> str:
        raise NotImplementedError

    def _get_block(self, file: ListedFile, start: int, end: int) -> GetResult:
        raise NotImplementedError

    def _check_version(self, file: ListedFile, answer: httpx.Response) -> None:
        """Raise WeightsError if the answer is of another version than the listed one."""

    @contextmanager
    def _translate_errors(self, path: str = "") -> Generator[None]:
        try:
            with self._client.translate_errors():
                yield
        except HttpFault as fault:
            raise self._explain(fault, path) from None

    def _explain(self, fault: HttpFault, path: str) -> WeightsError:
        """Return the error for users."""
        kind, step = WeightsError, f"Check {self._setting}."
        if fault.is_transient:
            kind = TransientError
            step = f"Check the network and {self._setting}, and push again: {_KEPT}"
        elif fault.status in (401, 403):
            step = self._access
        elif fault.kind is FaultKind.CERTIFICATE:
            step = "Set SSL_CERT_FILE if the certificate is of your own authority."
        elif fault.kind is FaultKind.NO_RANGES:
            kind = RangesUnsupported
        error = kind(
            f"{self._describe(path)} ({fault.reason}).", source=self._source, next_step=step
        )
        if isinstance(error, TransientError):
            error.retry_after = fault.retry_after
        return error

    def _describe(self, path: str) -> str:
        """Return the beginning of the sentence about a fault."""
        return f"{self._shown} could not be read"

    def _error(self, message: str, next_step: str) -> WeightsError:
        return WeightsError(f"{self._shown} {message}.", source=self._source, next_step=next_step)
