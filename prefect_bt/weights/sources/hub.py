"""The Hugging Face Hub as a weights source: revision to commit, listing, blocks of files.

The token is sent to the Hub only. No token of the environment is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from prefect_bt.errors import WeightsError
from prefect_bt.weights.sources import hub_responses
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.http_source import HttpFault, HttpSource
from prefect_bt.weights.sources.protocol import STALL_TIMEOUT

if TYPE_CHECKING:
    from obstore.store import HTTPStore


class HubSource(HttpSource):
    """Implements Source and SupportsRevision of sources.protocol."""

    _setting = "HF_ENDPOINT"

    def __init__(self, source: str, token: str, *, stall_timeout: float = STALL_TIMEOUT) -> None:
        super().__init__(source, token, stall_timeout=stall_timeout)
        self._repo_id, _, self._revision = source.removeprefix("hf://").partition("@")
        self._commit = self.pinned_revision
        self._store: HTTPStore | None = None

    @property
    def pinned_revision(self) -> str:
        return self._revision if hub_responses.COMMIT.fullmatch(self._revision) else ""

    def resolve_revision(self) -> str:
        at = f"/revision/{quote(self._revision, safe='')}" if self._revision else ""
        with self._translate_errors():
            document, _ = self._get_document(f"{self._repo_url('/api/models')}{at}?expand=sha")
            self._commit = hub_responses.parse_commit(document)
        return self._commit

    def list_files(self) -> Listing:
        commit = self._commit or self.resolve_revision()
        with self._translate_errors():
            url = f"{self._repo_url('/api/models')}/tree/{commit}?recursive=true"
            files = tuple(hub_responses.iter_files(self._get_document, url))
        return Listing(self._source, commit, files)

    def _locate(self, file: ListedFile, *, whole: bool) -> tuple[HTTPStore, str]:
        """Small files need no request for a redirect; the Hub limits requests for the others."""
        if not whole:
            return super()._locate(file, whole=whole)
        with self._lock:
            self._store = self._store or self._open_store(self._repo_url(), self._token)
            return self._store, f"resolve/{self._commit}/{file.path}"

    def _file_url(self, file: ListedFile) -> str:
        return f"{self._repo_url()}/resolve/{self._commit}/{quote(file.path)}"

    def _repo_url(self, prefix: str = "") -> str:
        """Return the repository's URL at the Hub, or at the part of the Hub below `prefix`."""
        from huggingface_hub import constants
        from huggingface_hub.utils import validate_repo_id

        if constants.is_offline_mode():
            step = "Unset it, or name a commit that was mirrored before: hf://owner/repo@<commit>."
            raise self._error("cannot be read: HF_HUB_OFFLINE is set", step)
        try:
            validate_repo_id(self._repo_id)
        except ValueError:
            raise self._error("is no repository", "Write hf://owner/repo[@revision].") from None
        return f"{_endpoint()}{prefix}/{self._repo_id}"

    def _get_document(self, url: str) -> tuple[Any, Mapping[str, str]]:
        """Return the JSON of an answer, and its headers."""
        deadline = time.monotonic() + hub_responses.MAX_PAGE_SECONDS
        with self._get(url) as answer:
            return hub_responses.read_document(answer.iter_raw(), deadline), answer.headers

    def _explain(self, fault: HttpFault, path: str) -> WeightsError:
        if isinstance(fault, hub_responses.MalformedResponse):
            what = f"cannot be used: the answer of {_endpoint()} {fault.reason}"
            hint = "Nothing was fetched. Check that HF_ENDPOINT is a Hub that you trust."
            return self._error(what, hint)
        match _error_code(fault):
            case "GatedRepo":
                return self._error("is gated", f"Accept its terms on the Hub. {self._access_step}")
            case "RevisionNotFound":
                return self._error("has no such revision", "Check the text after the @.")
            case "RepoNotFound":
                what = f"does not exist at {_endpoint()}, or is private"
                return self._error(what, f"Check its name. {self._access_step}")
            case _:
                return super()._explain(fault, path)

    def _describe(self, path: str) -> str:
        file = f": {path}" if path else ""
        return f"{self._source}{file} could not be read from {_endpoint()}"


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _error_code(fault: HttpFault) -> str:
    """Return the Hub's code of an error. It hides private repositories by a 401 without one."""
    code = fault.headers.get("X-Error-Code", "")
    wrong_token = "Invalid credentials" in fault.headers.get("X-Error-Message", "")
    hidden = fault.status == 401 and fault.headers and not wrong_token
    return "" if fault.is_transient else code or ("RepoNotFound" if hidden else "")
