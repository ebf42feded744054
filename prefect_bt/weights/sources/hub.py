"""The Hugging Face Hub as a weights source: revision to commit, listing, ranges over plain HTTP.

The token is sent to the Hub alone. No token of the environment is used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

from prefect_bt.errors import WeightsError
from prefect_bt.weights.sources.byte_ranges import RETRYABLE_STATUSES, byte_range, slice_chunks
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.http_client import (
    CertificateError,
    ConnectionLost,
    HttpClient,
    InsecureRedirect,
    Response,
)
from prefect_bt.weights.sources.hub_responses import (
    COMMIT,
    MalformedResponse,
    iter_files,
    parse_commit,
    read_document,
)
from prefect_bt.weights.sources.protocol import STALL_TIMEOUT, SourceRequest, TransientError
from prefect_bt.weights.sources.secret_fields import parse_token

REDIRECT_CACHE_TTL: Final = 300.0
"""For so long a redirect's target is asked without asking the Hub; CDNs sign for an hour."""
_RESUME_HINT: Final = "push again: what is here already is kept."


def parse_source(source: str) -> tuple[str, str]:
    """`hf://owner/repo@main` -> `("owner/repo", "main")`; the revision is empty when not given."""
    repo_id, _, revision = source.removeprefix("hf://").partition("@")
    return repo_id, revision


class HubSource:
    """Implements weights.sources.protocol.Source."""

    detects_changes = True

    def __init__(
        self, source: str, token: str | None, *, stall_timeout: float = STALL_TIMEOUT
    ) -> None:
        self._source, self._token = source, token
        self._repo_id, self._revision = parse_source(source)
        self._commit = self.pinned_revision
        self._connections = HttpClient(stall_timeout=stall_timeout)
        self._targets: dict[str, tuple[str, float]] = {}
        """Path -> where its redirect led, and until when that is believed."""
        self._given: dict[str, str] = {}

    @classmethod
    def open(cls, request: SourceRequest) -> HubSource:
        secret = request.secret
        token = parse_token(request.plan, secret) if secret else None
        return cls(request.plan.source, token, stall_timeout=request.stall_timeout)

    @property
    def pinned_revision(self) -> str:
        """The commit that the source itself names; "" when the Hub must be asked."""
        return self._revision if COMMIT.fullmatch(self._revision) else ""

    # -- listing ------------------------------------------------------------------------------

    def resolve_revision(self) -> str:
        """The commit that the source's revision names now; WeightsError."""
        with _ErrorTranslator(self._source, self._token):
            at = f"/revision/{quote(self._revision, safe='')}" if self._revision else ""
            answer = self._request(f"{self._api()}{at}?expand=sha")
            self._commit = parse_commit(read_document(answer))
        return self._commit

    def list_files(self) -> Listing:
        """The repository at that commit; WeightsError."""
        commit = self._commit or self.resolve_revision()
        with _ErrorTranslator(self._source, self._token):
            url = f"{self._api()}/tree/{commit}?recursive=true"
            files = tuple(iter_files(self._request, url))
        return Listing(self._source, commit, files)

    def _api(self) -> str:
        """The repository's URL. HfApi, which asks the same, bounds neither time nor bytes."""
        from huggingface_hub import constants
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(self._repo_id)
        return f"{constants.ENDPOINT}/api/models/{self._repo_id}"

    # -- reading ------------------------------------------------------------------------------

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        if not length or file.size == 0:
            return  # no server has a range of nothing
        with _ErrorTranslator(self._source, self._token, file.path):
            try:
                yield from self._iter_range(file.path, start, length)
            except ConnectionLost:
                self._targets.pop(file.path, None)  # another may be well
                raise

    def _iter_range(self, path: str, start: int, length: int) -> Iterator[bytes]:
        answer = self._open(path, {"Range": byte_range(start, length)})
        try:
            if answer.range_start > start:
                raise ConnectionLost("it sent another range")
            yield from slice_chunks(
                answer.iter_chunks(), skip=start - answer.range_start, length=length
            )
        finally:
            answer.close()

    def _open(self, path: str, headers: Mapping[str, str]) -> Response:
        """From where the Hub redirected to before, as long as that is answered."""
        from huggingface_hub import constants, hf_hub_url

        target, until = self._targets.get(path, ("", 0.0))
        if time.monotonic() < until and not constants.is_offline_mode():
            answer = self._connections.get(target, {**headers, **_NO_COMPRESSION})
            if answer.status in {200, 206}:
                return answer
            answer.close()
            self._targets.pop(path, None)
        url = hf_hub_url(self._repo_id, path, revision=self._commit)
        answer = self._request(url, headers)
        if answer.url != url:
            self._targets[path] = (answer.url, time.monotonic() + REDIRECT_CACHE_TTL)
        return answer

    def _request(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """The Hub's answer when it is one of success; _Refused."""
        from huggingface_hub import constants, errors

        if constants.is_offline_mode():
            raise errors.OfflineModeIsEnabled
        given = dict(self._headers())
        private = {name: given.pop(name) for name in [*given] if name.lower() == "authorization"}
        answer = self._connections.get(
            url, {**given, **(headers or {}), **_NO_COMPRESSION}, private
        )
        if answer.status not in {200, 206}:
            answer.close()
            raise _ErrorResponse(str(answer.status), _code(answer), answer.retry_after)
        return answer

    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import (
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
        )

        if not self._given:  # made once: huggingface_hub may ask the Hub which programs it knows
            self._given = build_hf_headers(token=self._token or False)
        return self._given


_NO_COMPRESSION: Final = {"Accept-Encoding": "identity"}


def _code(response: Response) -> str:
    """A 401 without a code is how the Hub hides that a repository is private."""
    told = response.headers.get("X-Error-Code", "")
    wrong_token = "Invalid credentials" in response.headers.get("X-Error-Message", "")
    return told or ("RepoNotFound" if response.status == 401 and not wrong_token else "")


class _ErrorResponse(Exception):
    """The Hub, or where it led, answered something else than the file."""

    def __init__(self, status: str, code: str, retry_after: float) -> None:
        self.status, self.code, self.retry_after = status, code, retry_after
        super().__init__(f"{status} {code}")


class _ErrorTranslator:
    """Turns the Hub's errors into ours: one sentence, the next step, never a URL or a header."""

    def __init__(self, source: str, token: str | None, path: str = "") -> None:
        self._source, self._has_token, self._path = source, bool(token), path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if error is None or isinstance(error, WeightsError):
            return
        explained = self._explain(error)
        if explained is None:
            return
        what, step = explained
        if not _is_transient(error):
            sentence = f"{self._source} {what}."
            raise WeightsError(sentence, source=self._source, next_step=step) from error
        which = f"{self._source}: {self._path}" if self._path else self._source
        passing = TransientError(f"{which} {what}.", source=self._source, next_step=step)
        passing.retry_after = error.retry_after if isinstance(error, _ErrorResponse) else 0.0
        raise passing from error

    def _explain(self, error: BaseException) -> tuple[str, str] | None:
        from huggingface_hub import constants, errors

        hub = constants.ENDPOINT
        give = "Give auth with a token that may read it."
        if self._has_token:
            give = "Check that its token is valid and may read it."
        if isinstance(error, _ErrorResponse):
            status, code = error.status, error.code
            known = {
                "GatedRepo": ("is gated", f"Accept its terms on the Hub. {give}"),
                "RevisionNotFound": ("has no such revision", "Check what follows the @."),
                "RepoNotFound": (
                    f"does not exist at {hub}, or is private",
                    f"Check its name. {give}",
                ),
            }
            step = give if status in {"401", "403"} else "Push again when it is well."
            return known.get(code, (f"could not be read: {hub} answered {status}", step))
        lost = f"could not be fetched from {hub}"
        check = f"Check the network and HF_ENDPOINT, and {_RESUME_HINT}"
        table: list[tuple[type[BaseException], str, str]] = [
            (errors.HFValidationError, "is no repository", "Write hf://owner/repo[@revision]."),
            (
                errors.OfflineModeIsEnabled,
                "cannot be asked for: HF_HUB_OFFLINE is set",
                "Unset it, or name a commit that was mirrored before: hf://owner/repo@<commit>.",
            ),
            (
                CertificateError,
                f"cannot be fetched: {hub}, or where it led, cannot be trusted ({error})",
                "Set SSL_CERT_FILE if its certificate is of your own authority.",
            ),
            (
                MalformedResponse,
                f"cannot be used: the answer of {hub} {error}",
                "Nothing was fetched. Check that HF_ENDPOINT is a Hub that you trust.",
            ),
            (InsecureRedirect, "is redirected to a URL without https", "Check HF_ENDPOINT."),
            (ConnectionLost, f"{lost} ({error})", check),
            (ValueError, f"{lost}: that is no URL", "Check HF_ENDPOINT."),
            (OSError, f"could not be fetched ({error})", f"Check the network, and {_RESUME_HINT}"),
        ]
        return next(((what, step) for kind, what, step in table if isinstance(error, kind)), None)


def _is_transient(error: BaseException) -> bool:
    """Whether the Hub may be well the next time it is asked."""
    return (
        error.status in RETRYABLE_STATUSES
        if isinstance(error, _ErrorResponse)
        else isinstance(error, ConnectionLost)
    )
