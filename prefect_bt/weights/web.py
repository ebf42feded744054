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
from prefect_bt.weights.connections import Answer, Connections, LeavesHttps, Lost, Untrusted
from prefect_bt.weights.credentials import read_token
from prefect_bt.weights.listing import ListedFile, Listing, revision_of
from prefect_bt.weights.source import STALL_SECONDS, Interrupted, SourceRequest
from prefect_bt.weights.streams import BUSY, byte_range, cut

_PARTIAL, _NO_SUCH_RANGE = 206, 416


class WebSource:
    """Implements weights.source.Source."""

    fixed = ""
    pins = True

    def __init__(self, source: str, token: str | None, *, stall: float = STALL_SECONDS) -> None:
        self._source, self._token = source, token
        self._shown = source.partition("?")[0]
        self._name = unquote(urlsplit(source).path.rpartition("/")[2])
        if not self._name:
            raise self._error("names no file", "Write the URL of one file: https://host/path/file.")
        self._connections = Connections(stall=stall)

    @classmethod
    def open(cls, request: SourceRequest) -> WebSource:
        secret = request.secret
        token = read_token(request.plan, secret) if secret else None
        return cls(request.plan.source, token, stall=request.stall)

    def list(self) -> Listing:
        """Asked with GET for the first byte: signed URLs are often not signed for HEAD."""
        with self._explained(), self._answer(0, 1) as answer:
            size, tag = answer.total, _tag(answer)
        if not tag and size is None:
            raise self._error(
                "has neither ETag nor Last-Modified nor a length, so no version of it can be kept",
                "Fetch it in your start command instead.",
            )
        whole = size != 0 and answer.status != _PARTIAL
        file = ListedFile(self._name, size, tag=tag, whole=whole)
        return Listing(self._source, revision_of([file]), (file,))

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        if not length or file.size == 0:
            return
        with self._explained(), self._answer(start, length, tag=file.tag) as answer:
            if _tag(answer) != file.tag or answer.total not in {file.size, None}:
                raise self._error(
                    "changed while it was read", "Push again when nothing writes there."
                )
            if answer.start > start:
                raise Lost("it sent another range")
            yield from cut(answer.pieces(), skip=start - answer.start, length=length)

    @contextmanager
    def _answer(self, start: int, length: int, *, tag: str = "") -> Generator[Answer]:
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
            empty = answer.status == _NO_SUCH_RANGE and answer.total == 0
            if answer.status not in {200, _PARTIAL} and not empty:
                self._refused(answer)
            yield answer
        finally:
            answer.close()

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except Untrusted as error:
            raise self._error(
                f"cannot be trusted ({error})",
                "Set SSL_CERT_FILE if its certificate is of your own authority.",
            ) from None
        except Lost as error:
            raise Interrupted(
                f"{self._shown} could not be read ({error}).",
                source=self._source,
                next_step="Check the network, and push again: what is here already is kept.",
            ) from None
        except LeavesHttps:
            raise self._error(
                "is redirected to a URL without https", "Name the URL that it is redirected to."
            ) from None
        except ValueError:
            raise self._error("is no URL", "Write https://host/path/file.") from None

    def _refused(self, answer: Answer) -> NoReturn:
        status = answer.status
        give = "Check that its token may read it." if self._token else "Give auth with a token."
        match status:
            case 401 | 403:
                raise self._error(f"may not be read: the server answered {status}", give)
            case 404 | 410:
                raise self._error(f"does not exist: the server answered {status}", "Check it.")
            case _ if str(status) in BUSY:
                busy = Interrupted(
                    f"{self._shown} could not be read: the server answered {status}.",
                    source=self._source,
                    next_step="Push again when it is well: what is here already is kept.",
                )
                busy.after = answer.wait
                raise busy
            case _:
                raise self._error(f"could not be read: the server answered {status}", "Check it.")

    def _error(self, what: str, next_step: str) -> WeightsError:
        return WeightsError(f"{self._shown} {what}.", source=self._source, next_step=next_step)


def _tag(answer: Answer) -> str:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
