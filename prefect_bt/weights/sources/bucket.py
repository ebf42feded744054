"""Objects below a prefix of a bucket as a weights source: s3, r2, cw, gs, azure.

`s3://bucket/models/llama` is every object below `models/llama/`, or the one object of that name.
What is read is pinned by its ETag: an object that is replaced meanwhile is an error.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, NoReturn

from prefect_bt.errors import WeightsError
from prefect_bt.weights.sources.bucket_auth import AccessMethod, list_access_methods, parse_location
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.patterns import filter_paths
from prefect_bt.weights.sources.protocol import (
    CONNECT_TIMEOUT,
    RangesUnsupported,
    SourceRequest,
    TransientError,
)

_MD5: Final = re.compile(r'"([0-9a-f]{32})"')
_PRESIGN_DURATION: Final = timedelta(minutes=5)
_ACCESS_DENIED_CODES: Final = frozenset(
    {
        *("AccessDenied", "ExpiredToken", "Forbidden", "InvalidAccessKeyId", "InvalidToken"),
        *("AuthenticationFailed", "AuthorizationFailure", "SignatureDoesNotMatch"),
        *("AuthorizationPermissionMismatch", "NoAuthenticationInformation"),
        *("PublicAccessNotPermitted", "InvalidAuthenticationInfo"),
    }
)
_CHUNK_BYTES: Final = 256 << 10
"""Bytes that are handed on at once: they stay in the processor's cache on their way to the disk."""
_NOT_PARTIAL: Final = "non-partial response"
"""obstore's words for an answer to a range that is not one."""
_NOT_FOUND_CODES: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "NoSuchKey"})
_WRONG_REGION_CODES: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)


class _AccessDenied(Exception):
    """These credentials may not read it."""


class BucketSource:
    """Implements weights.sources.protocol.Source and TellsTags."""

    pinned_revision = ""
    detects_changes = True

    def __init__(self, request: SourceRequest) -> None:
        self._plan = request.plan
        self._place = parse_location(request.plan)
        self._stall = request.stall_timeout
        self._ways = list_access_methods(
            request.plan, self._place, request.secret, stall_timeout=request.stall_timeout
        )
        self._store: Any = None
        self._base = ""
        self._sdk: Any = import_module("obstore")
        self._faults: Any = import_module("obstore.exceptions")

    @classmethod
    def open(cls, request: SourceRequest) -> BucketSource:
        return cls(request)

    # -- listing ------------------------------------------------------------------------------

    def list_files(self) -> Listing:
        """By the first way in that is not refused; it is kept for reading."""
        tried: list[str] = []
        for way in self._ways:
            try:
                return self._list_with(way)
            except _AccessDenied:
                tried.append(way.name)
            except TransientError:
                if way.has_credentials:
                    raise
                tried.append(way.name)
        raise self._access_denied_error(tried) from None

    def _list_with(self, method: AccessMethod) -> Listing:
        store = self._open(method)
        with self._translate_errors():
            files, base = self._list_prefix(store)
        self._store, self._base = store, base
        plan = self._plan
        chosen = set(
            filter_paths(
                (file.path for file in files),
                allow=plan.allow_patterns,
                ignore=plan.ignore_patterns,
            )
        )
        # What is not wanted may change without a new mirror.
        revision = compute_revision(file for file in files if file.path in chosen)
        return Listing(plan.source, revision, tuple(files))

    def _open(self, method: AccessMethod) -> Any:
        try:
            return method.open()
        except (self._faults.BaseError, ValueError, TypeError):
            # Its text may hold a part of what could not be read.
            raise WeightsError(
                f"{self._plan.source} cannot be opened with {method.name}.",
                source=self._plan.source,
                next_step="Check the form of the secret and of the address.",
            ) from None

    def _list_prefix(self, store: Any) -> tuple[list[ListedFile], str]:
        """What lies below the prefix, and what its paths begin with in the bucket."""
        prefix = self._place.prefix
        base = f"{prefix}/" if prefix else ""
        batches = self._sdk.list(store, prefix or None, chunk_size=1000)
        found = [item for batch in batches for item in batch]
        folders = {parent for item in found for parent in _parents(str(item["path"]))}
        files = [
            _listed_file(str(item["path"]).removeprefix(base), item)
            for item in found
            # Consoles make empty objects to show a folder.
            if item["size"] or str(item["path"]) not in folders
        ]
        if files or not prefix:
            return files, base
        folder, slash, name = prefix.rpartition("/")
        try:
            return [_listed_file(name, self._sdk.head(store, prefix))], folder + slash
        except FileNotFoundError:
            return [], base

    # -- reading ------------------------------------------------------------------------------

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[memoryview]:
        end = (file.size or 0) if length < 0 else start + length
        if end <= start:
            return
        with self._translate_errors(file):
            # Not every server of buckets knows ranges; all of it can be had from any.
            part = start > 0 or end < (file.size or 0)
            options: dict[str, Any] = {"range": (start, end)} if part else {}
            if file.version_tag.startswith('"'):
                options["if_match"] = file.version_tag
            answer = self._sdk.get(self._store, self._base + file.path, options=options)
            if _tag(answer.meta) != file.version_tag:
                self._raise_changed(file)
            for piece in answer.stream(min_chunk_size=_CHUNK_BYTES):
                yield memoryview(piece)

    def has_md5_tag(self, file: ListedFile) -> bool:
        """Whether the object is not encrypted in a way that makes its tag something else.

        Asked with a signed URL, because obstore keeps the headers that tell to itself. Who cannot
        be asked is believed.
        """
        try:
            signed = self._sdk.sign(self._store, "HEAD", self._base + file.path, _PRESIGN_DURATION)
            request = urllib.request.Request(str(signed), method="HEAD")  # noqa: S310
            with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT) as answer:  # noqa: S310
                kind = answer.headers.get("x-amz-server-side-encryption", "AES256")
                own = answer.headers.get("x-amz-server-side-encryption-customer-algorithm")
                return kind == "AES256" and not own
        except (self._faults.BaseError, OSError, ValueError):
            return True

    # -- faults -------------------------------------------------------------------------------

    @contextmanager
    def _translate_errors(self, file: ListedFile | None = None) -> Generator[None]:
        """The libraries' exceptions in, ours out: without their texts, which may hold a URL."""
        began = time.monotonic()
        faults = self._faults
        try:
            yield
        except (faults.PermissionDeniedError, faults.UnauthenticatedError, PermissionError):
            self._raise_denied(file)
        except (faults.PreconditionError, FileNotFoundError):
            if file is None:
                self._raise_bucket_not_found()
            self._raise_changed(file)
        except faults.InvalidPathError:
            raise self._error(
                "holds an object whose name could not lie below the mount",
                "Name a prefix beside it: `..`, `.` and empty folders in a name cannot be mounted.",
            ) from None
        except (faults.BaseError, OSError) as error:
            self._raise_unclassified(error, file, time.monotonic() - began)

    def _raise_unclassified(
        self, error: Exception, file: ListedFile | None, seconds: float
    ) -> NoReturn:
        code = _code_in(error)
        if code in _ACCESS_DENIED_CODES:
            self._raise_denied(file)
        if code in _NOT_FOUND_CODES:
            self._raise_bucket_not_found()
        if code in _WRONG_REGION_CODES or "redirect without LOCATION" in str(error):
            raise self._error(
                "is a bucket of another region",
                "Give aws_region in the secret, or set AWS_REGION.",
            ) from None
        if _NOT_PARTIAL in str(error):
            raise RangesUnsupported(
                f"{self._plan.source}: the server sends whole objects only.",
                source=self._plan.source,
                next_step="Ask who runs it for support of the Range header.",
            ) from None
        where = f"{file.path} " if file else ""
        unanswered = (
            f"no usable answer in {seconds:.0f} s; a connection without a byte for "
            f"{self._stall:g} s is given up"
        )
        why = code or _describe_transport_error(error) or unanswered
        raise TransientError(
            f"{self._plan.source}: {where}could not be read ({why}).",
            source=self._plan.source,
            next_step="Check the network, and push again: what is here already is kept.",
        ) from None

    def _raise_denied(self, file: ListedFile | None) -> NoReturn:
        if file is None:
            raise _AccessDenied from None
        raise self._error(
            f"lists {file.path}, but it may not be read",
            "Give auth that may read the objects, not only list them.",
        ) from None

    def _raise_bucket_not_found(self) -> NoReturn:
        raise self._error(
            f"does not exist: there is no bucket {self._place.bucket!r}", "Check its name."
        ) from None

    def _raise_changed(self, file: ListedFile) -> NoReturn:
        raise self._error(
            f"changed while it was read: {file.path} is another object now",
            "Push again when nothing writes there.",
        ) from None

    def _access_denied_error(self, tried: list[str]) -> WeightsError:
        plan = self._plan
        if plan.auth.method:
            what = f"may not be read with {tried[0]}"
            step = "Check that it is valid, and that it may list and read there."
        else:
            what = f"may not be read with {' or with '.join(tried)}"
            step = "Give auth: CUSTOM_SECRET with auth_secret_name reads any bucket."
        return self._error(what, step)

    def _error(self, message: str, next_step: str) -> WeightsError:
        source = self._plan.source
        return WeightsError(f"{source} {message}.", source=source, next_step=next_step)


def _listed_file(path: str, item: Any) -> ListedFile:
    tag = _tag(item)
    found = _MD5.fullmatch(tag)
    return ListedFile(path, int(item["size"]), version_tag=tag, md5=found[1] if found else "")


def _tag(item: Any) -> str:
    """Some servers quote an ETag where they send the object and not where they list it."""
    tag = str(item.get("e_tag") or "")
    if tag:
        return tag if tag.startswith(('"', "W/")) else f'"{tag}"'
    return str(item.get("version") or item.get("last_modified") or "")


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _describe_transport_error(error: BaseException) -> str:
    """What obstore's text says of the way to the server; its URLs stay where they are."""
    text = str(error)
    known = {
        "dns error": "no address is known for its host",
        "Connection refused": "the connection was refused",
        "Connection reset": "the connection was reset",
        "invalid peer certificate": "its certificate is not trusted",
    }
    return next((words for sign, words in known.items() if sign in text), "")


def _code_in(error: BaseException) -> str:
    """The code of an error document, which obstore hands on as text."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""
