"""One file behind a URL as a weights source: `https://host/path/file`.

The file is named after the last part of the URL's path. It is pinned by its ETag, else by
Last-Modified and its length. A token goes to the host that the source names alone, and a redirect
that leaves https is refused. What follows a `?` may be a signature and is shown nowhere.
"""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

from prefect_bt.errors import WeightsError
from prefect_bt.weights.credentials import read_token
from prefect_bt.weights.listing import ListedFile, Listing, revision_of
from prefect_bt.weights.source import READ_BYTES, STALL_SECONDS, Interrupted, SourceRequest
from prefect_bt.weights.streams import BUSY, byte_range, cut

_PARTIAL, _NO_SUCH_RANGE = 206, 416
_TOTAL: Final = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")


class WebSource:
    """Implements weights.source.Source."""

    fixed = ""
    pins = True

    def __init__(self, source: str, token: str | None) -> None:
        self._source, self._token = source, token
        self._shown = source.partition("?")[0]
        self._name = unquote(urlsplit(source).path.rpartition("/")[2])
        if not self._name:
            raise self._error("names no file", "Write the URL of one file: https://host/path/file.")
        self._opener = urllib.request.build_opener(_OnlyHttps)

    @classmethod
    def open(cls, request: SourceRequest) -> WebSource:
        secret = request.secret
        return cls(request.plan.source, read_token(request.plan, secret) if secret else None)

    def list(self) -> Listing:
        """Asked with GET for the first byte: signed URLs are often not signed for HEAD."""
        with self._explained(), closing(self._get(0, 1)) as answer:
            headers = answer.headers
            size = _total(answer)
            tag = _tag(headers)
        if not tag and size is None:
            raise self._error(
                "has neither ETag nor Last-Modified nor a length, so no version of it can be kept",
                "Fetch it in your start command instead.",
            )
        file = ListedFile(self._name, size, tag=tag)
        return Listing(self._source, revision_of([file]), (file,))

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        if not length or (file.size == 0):
            return
        with self._explained(), closing(self._get(start, length)) as answer:
            if _tag(answer.headers) != file.tag or _total(answer) not in {file.size, None}:
                raise self._error(
                    "changed while it was read", "Push again when nothing writes there."
                )
            skip = 0 if answer.status == _PARTIAL else start
            yield from cut(iter(lambda: answer.read1(READ_BYTES), b""), skip=skip, length=length)

    def _get(self, start: int, length: int) -> Any:
        request = urllib.request.Request(self._source)
        request.add_header("Range", byte_range(start, length))
        request.add_header("Accept-Encoding", "identity")
        request.add_header("User-Agent", "prefect-bt")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            return self._opener.open(request, timeout=STALL_SECONDS)
        except urllib.error.HTTPError as error:
            # The answer to a range of an empty file.
            if error.code == _NO_SUCH_RANGE and _total(error) == 0:
                return error
            raise

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            self._refused(error.code)
        except (OSError, http.client.HTTPException) as error:
            reason: object = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise self._error(
                    f"cannot be trusted ({reason.verify_message})",
                    "Set SSL_CERT_FILE if its certificate is of your own authority.",
                ) from None
            why = type(reason).__name__
            if isinstance(reason, TimeoutError):
                why = f"no byte for {STALL_SECONDS:.0f} s"
            elif isinstance(reason, OSError) and reason.strerror:
                why = reason.strerror
            raise Interrupted(
                f"{self._shown} could not be read ({why}).",
                source=self._source,
                next_step="Check the network, and push again: what is here already is kept.",
            ) from None
        except _LeavesHttps:
            raise self._error(
                "is redirected to a URL without https", "Name the URL that it is redirected to."
            ) from None
        except ValueError:
            raise self._error("is no URL", "Write https://host/path/file.") from None

    def _refused(self, status: int) -> NoReturn:
        give = "Check that its token may read it." if self._token else "Give auth with a token."
        match status:
            case 401 | 403:
                raise self._error(f"may not be read: the server answered {status}", give) from None
            case 404 | 410:
                raise self._error(f"does not exist: the server answered {status}", "Check it.")
            case _ if str(status) in BUSY:
                raise Interrupted(
                    f"{self._shown} could not be read: the server answered {status}.",
                    source=self._source,
                    next_step="Push again when it is well: what is here already is kept.",
                ) from None
            case _:
                raise self._error(f"could not be read: the server answered {status}", "Check it.")

    def _error(self, what: str, next_step: str) -> WeightsError:
        return WeightsError(f"{self._shown} {what}.", source=self._source, next_step=next_step)


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    """Bytes and tokens stay encrypted all the way."""

    def redirect_request(  # noqa: PLR0913, PLR0917 (urllib's)
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            raise _LeavesHttps
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _LeavesHttps(Exception):
    """Redirected to a URL of another scheme."""


def _tag(headers: Any) -> str:
    return str(headers.get("ETag") or headers.get("Last-Modified") or "")


def _total(answer: Any) -> int | None:
    """The whole file's length, as far as the answer tells."""
    told = _TOTAL.fullmatch(str(answer.headers.get("Content-Range", "")))
    if told:
        return int(told[1])
    if answer.status in {_PARTIAL, _NO_SUCH_RANGE}:
        return None
    length = str(answer.headers.get("Content-Length", ""))
    return int(length) if length.isdecimal() else None
