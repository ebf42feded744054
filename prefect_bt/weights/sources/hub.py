"""The Hugging Face Hub as a weights source: revision to commit, listing, blocks of files.

The token is sent to the Hub only. No token of the environment is used. A server at HF_ENDPOINT is
not trusted: digests and commits become paths, keys of objects and parts of URLs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote as quote_url
from urllib.parse import urlsplit

from huggingface_hub import constants
from huggingface_hub.utils import validate_repo_id
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from prefect_bt.errors import WeightsError
from prefect_bt.text.hub_uri import HUB_FORM, parse_hub_uri
from prefect_bt.weights.sources.file_listing import (
    SHA256,
    ListedFile,
    Listing,
    is_bookkeeping,
    quote,
)
from prefect_bt.weights.sources.http_source import HttpFault, HttpSource
from prefect_bt.weights.sources.protocol import SourceRequest

MAX_PAGE_BYTES: Final = 8 << 20
"""The Hub sends pages of 1000 files, half a megabyte."""
MAX_PAGE_SECONDS: Final = 300.0
MAX_ENTRIES: Final = 200_000
"""Twice the Hub's limit for a repository."""
MAX_PAGES: Final = 2_000
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""A commit, and the id of git's blob object."""
_NEXT_LINK: Final = re.compile(r'<([^<>]+)>;\s*rel="?next"?')
_T = TypeVar("_T")
_Sha1 = Annotated[str, Field(pattern=f"^{_COMMIT.pattern}$")]
_Sha256 = Annotated[str, Field(pattern=f"^{SHA256.pattern}$")]
_Size = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]


class MalformedResponse(HttpFault):
    """Error: an answer that does not come from a Hub. `reason`: a phrase without controls."""


class _Repository(BaseModel):
    sha: _Sha1


class _Pointer(BaseModel):
    oid: _Sha256
    size: _Size


class _File(BaseModel):
    path: Annotated[str, Field(max_length=4096)]
    """Longer paths are not even compared with patterns."""
    size: _Size
    oid: _Sha1
    lfs: _Pointer | None = None


class HubSource(HttpSource):
    """A repository of the Hub, or a file or folder of one."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self._setting = f"HF_ENDPOINT ({constants.ENDPOINT})"
        self._limit_hint = "" if self._token else "; a token raises the limit"
        try:
            self._uri = parse_hub_uri(self._source)
        except ValueError:
            raise self._error("is no repository", f"Write {HUB_FORM}.") from None
        revision, path = self._uri.revision, self._uri.path
        self._commit = revision if _COMMIT.fullmatch(revision) else ""
        self._base = f"{path}/" if path else ""
        """Start of the files' paths in the repository."""

    def resolve_revision(self) -> str:
        """Return the commit, requested once."""
        if not self._commit:
            revision = quote_url(self._uri.revision, safe="")
            at = f"/revision/{revision}" if revision else ""
            with self._translate_errors():
                document, _ = self._get_page(f"{self._api_url()}{at}?expand=sha")
                self._commit = _validate(_Repository, document).sha
        return self._commit

    def list_files(self) -> Listing:
        commit = self.resolve_revision()
        with self._translate_errors():
            tree, path = f"{self._api_url()}/tree/{commit}", self._uri.path
            try:
                at = f"/{quote_url(path)}" if path else ""
                files = [*self._iter_files(f"{tree}{at}?recursive=true")]
            except HttpFault as fault:
                if not path or _error_code(fault) != "EntryNotFound":
                    raise
                folder, slash, _ = path.rpartition("/")  # the path may be that of a file
                self._base = folder + slash
                at = f"/{quote_url(folder)}" if folder else ""
                files = [f for f in self._iter_files(f"{tree}{at}") if self._base + f.path == path]
                if not files:
                    raise
        return Listing(commit, tuple(files))

    def _iter_files(self, url: str) -> Iterator[ListedFile]:
        """Yield the files of all pages that are below the base, by their paths there."""
        requested, entries = set[str](), 0
        while url:
            requested.add(url)
            document, link = self._get_page(url)
            page = _validate(list[dict[str, Any]], document)
            entries += len(page)
            if entries > MAX_ENTRIES or len(requested) > MAX_PAGES:
                text = f"has more than {MAX_ENTRIES:,} files, or {MAX_PAGES:,} pages"
                raise MalformedResponse(text)
            files = [entry for entry in page if entry.get("type") == "file"]
            for file in _validate(list[_File], files):
                path = file.path.removeprefix(self._base)
                if is_bookkeeping(path) or not file.path.startswith(self._base):
                    continue
                if file.lfs:
                    yield ListedFile(path, file.lfs.size, sha256=file.lfs.oid)
                else:
                    yield ListedFile(path, file.size, git_sha1=file.oid)
            # The token is sent to where `url` is; the link of a mirror may name the Hub itself.
            found = _NEXT_LINK.search(link)
            url = urlsplit(url)._replace(query=urlsplit(found[1]).query).geturl() if found else ""
            if url in requested:
                raise MalformedResponse("repeats a page of the listing")

    def _get_page(self, url: str) -> tuple[Any, str]:
        """Return the JSON of an answer, and its header about the next page."""
        body, deadline = bytearray(), time.monotonic() + MAX_PAGE_SECONDS
        with self._get(url) as answer:
            for piece in answer.iter_raw():
                body += piece
                if len(body) > MAX_PAGE_BYTES:
                    raise MalformedResponse(f"has more than {MAX_PAGE_BYTES >> 20} MiB")
                if time.monotonic() > deadline:
                    raise HttpFault(f"no page in {MAX_PAGE_SECONDS:g} s")
        try:
            return json.loads(body), answer.headers.get("Link", "")
        except RecursionError:
            raise MalformedResponse("is nested too deeply") from None
        except ValueError:  # most often an error page of a proxy
            raise HttpFault("the answer is not JSON") from None

    def _locate(self, file: ListedFile) -> tuple[str, str]:
        path = f"resolve/{self._commit}/{self._base}{file.path}"
        return f"{self._endpoint()}/{self._uri.route}", path

    def _api_url(self) -> str:
        """Return the URL of the repository at the Hub's API."""
        return f"{self._endpoint()}/api/{self._uri.type}/{self._uri.repo_id}"

    def _endpoint(self) -> str:
        """Return the Hub's URL. WeightsError if it may not be used, or not for such a name."""
        if constants.is_offline_mode():
            step = "Unset it, or name a commit that was mirrored before: hf://owner/repo@<commit>."
            raise self._error("cannot be read: HF_HUB_OFFLINE is set", step)
        try:
            validate_repo_id(self._uri.repo_id)
        except ValueError:
            raise self._error("is no repository", f"Write {HUB_FORM}.") from None
        return constants.ENDPOINT

    def _explain(self, fault: HttpFault, path: str) -> WeightsError:
        if isinstance(fault, MalformedResponse):
            text = f"cannot be used: the answer of {constants.ENDPOINT} {fault.reason}"
            hint = "Nothing was fetched. Check that HF_ENDPOINT is a Hub that you trust."
            return self._error(text, hint)
        match _error_code(fault):
            case "GatedRepo":
                return self._error("is gated", f"Accept its terms on the Hub. {self._access_step}")
            case "RevisionNotFound":
                step = "Check the text after the @; write %2F for a / in the name of a branch."
                return self._error("has no such revision", step)
            case "EntryNotFound" if not path:
                step = "Check the path after the name of the repository."
                return self._error(f"has no file or folder {quote(self._uri.path)}", step)
            case "RepoNotFound":
                text = f"does not exist at {constants.ENDPOINT}, or is private"
                return self._error(text, f"Check its name. {self._access_step}")
            case _:
                return super()._explain(fault, path)


def _error_code(fault: HttpFault) -> str:
    """Return the Hub's code of an error. It hides private repositories by a 401 without one."""
    code = fault.headers.get("X-Error-Code", "")
    wrong_token = "Invalid credentials" in fault.headers.get("X-Error-Message", "")
    hidden = fault.status == 401 and fault.headers and not wrong_token
    return "" if fault.is_transient else code or ("RepoNotFound" if hidden else "")


def _validate(form: type[_T], document: Any) -> _T:
    """Return the answer as `form`. MalformedResponse with the first value that does not fit."""
    try:
        return TypeAdapter(form).validate_python(document)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = [f"entry {part}" if isinstance(part, int) else part for part in problem["loc"]]
        if len(place) > 1:
            place[0] = quote(document[problem["loc"][0]].get("path"))
        where = " of ".join(reversed(place)) or "the answer"
        text = f"gives {quote(problem['input'])} as {where}: {problem['msg']}"
        raise MalformedResponse(text) from None
