"""One file behind a URL as a weights source: `https://host/path/file`.

The file is named after the last part of the URL's path. It is pinned by its ETag, else by
Last-Modified and its length. A token goes to the host that the source names alone, and a redirect
that leaves https is refused. What follows a `?` may be a signature and is shown nowhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from prefect_bt.errors import WeightsError
from prefect_bt.weights.sources.byte_ranges import RETRYABLE_STATUSES, byte_range, slice_chunks
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.http_client import (
    CertificateError,
    ConnectionLost,
    HttpClient,
    InsecureRedirect,
    Response,
)
from prefect_bt.weights.sources.protocol import STALL_TIMEOUT, SourceRequest, TransientError
from prefect_bt.weights.sources.secret_fields import parse_token

_PARTIAL, _RANGE_NOT_SATISFIABLE = 206, 416


class WebSource:
    """Implements weights.sources.protocol.Source."""

    pinned_revision = ""
    detects_changes = True

    def __init__(
        self, source: str, token: str | None, *, stall_timeout: float = STALL_TIMEOUT
    ) -> None:
        self._source, self._token = source, token
        self._shown = source.partition("?")[0]
        self._name = unquote(urlsplit(source).path.rpartition("/")[2])
        if not self._name:
            raise self._error("names no file", "Write the URL of one file: https://host/path/file.")
        self._connections = HttpClient(stall_timeout=stall_timeout)

    @classmethod
    def open(cls, request: SourceRequest) -> WebSource:
        secret = request.secret
        token = parse_token(request.plan, secret) if secret else None
        return cls(request.plan.source, token, stall_timeout=request.stall_timeout)

    def list_files(self) -> Listing:
        """Asked with GET for the first byte: signed URLs are often not signed for HEAD."""
        with self._translate_errors(), self._request(0, 1) as answer:
            size, tag = answer.total_bytes, _tag(answer)
        if not tag and size is None:
            raise self._error(
                "has neither ETag nor Last-Modified nor a length, so no version of it can be kept",
                "Fetch it in your start command instead.",
            )
        whole = size != 0 and answer.status != _PARTIAL
        file = ListedFile(self._name, size, version_tag=tag, sequential_only=whole)
        return Listing(self._source, compute_revision([file]), (file,))

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        if not length or file.size == 0:
            return
        with self._translate_errors(), self._request(start, length, tag=file.version_tag) as answer:
            if _tag(answer) != file.version_tag or answer.total_bytes not in {file.size, None}:
                raise self._error(
                    "changed while it was read", "Push again when nothing writes there."
                )
            if answer.range_start > start:
                raise ConnectionLost("it sent another range")
            yield from slice_chunks(
                answer.iter_chunks(), skip=start - answer.range_start, length=length
            )

    @contextmanager
    def _request(self, start: int, length: int, *, tag: str = "") -> Generator[Response]:
        """With a `tag`, a server that has another file now sends that, not a range of it."""
        headers = {
            "Range": byte_range(start, length),
            "Accept-Encoding": "identity",
            "User-Agent": "prefect-bt",
        }
        if tag.startswith('"'):  # a weak one may not be asked for
            headers["If-Range"] = tag
        private = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        answer = self._connections.get(self._source, headers, private)
        try:
            empty = answer.status == _RANGE_NOT_SATISFIABLE and answer.total_bytes == 0
            if answer.status not in {200, _PARTIAL} and not empty:
                self._raise_for_status(answer)
            yield answer
        finally:
            answer.close()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except CertificateError as error:
            raise self._error(
                f"cannot be trusted ({error})",
                "Set SSL_CERT_FILE if its certificate is of your own authority.",
            ) from None
        except ConnectionLost as error:
            raise TransientError(
                f"{self._shown} could not be read ({error}).",
                source=self._source,
                next_step="Check the network, and push again: what is here already is kept.",
            ) from None
        except InsecureRedirect:
            raise self._error(
                "is redirected to a URL without https", "Name the URL that it is redirected to."
            ) from None
        except ValueError:
            raise self._error("is no URL", "Write https://host/path/file.") from None

    def _raise_for_status(self, answer: Response) -> NoReturn:
        status = answer.status
        give = "Check that its token may read it." if self._token else "Give auth with a token."
        match status:
            case 401 | 403:
                raise self._error(f"may not be read: the server answered {status}", give)
            case 404 | 410:
                raise self._error(f"does not exist: the server answered {status}", "Check it.")
            case _ if str(status) in RETRYABLE_STATUSES:
                busy = TransientError(
                    f"{self._shown} could not be read: the server answered {status}.",
                    source=self._source,
                    next_step="Push again when it is well: what is here already is kept.",
                )
                busy.retry_after = answer.retry_after
                raise busy
            case _:
                raise self._error(f"could not be read: the server answered {status}", "Check it.")

    def _error(self, message: str, next_step: str) -> WeightsError:
        return WeightsError(f"{self._shown} {message}.", source=self._source, next_step=next_step)


def _tag(answer: Response) -> str:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
