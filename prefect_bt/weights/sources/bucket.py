"""A folder of a bucket as a weights source: s3, r2, cw, gs, azure.

`s3://bucket/models/llama` is every object below `models/llama/`, or the one object of that name.
Reads are pinned by ETag: an object that is replaced meanwhile is an error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError

from prefect_bt.credentials.weights_access import list_accesses
from prefect_bt.errors import IdentityError, StoreError, WeightsError
from prefect_bt.object_store import connect
from prefect_bt.object_store.faults import CLOCK_STEP, FaultKind, classify_fault, is_transfer_error
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.file_listing import (
    ListedFile,
    Listing,
    compute_revision,
    is_bookkeeping,
)
from prefect_bt.weights.sources.patterns import filter_paths

_MAX_OBJECTS: Final = 1_000_000
_MAX_STREAM_SECONDS: Final = 7 * 24 * 3600.0
_SENTENCES: Final = {
    FaultKind.DENIED: ("lists {path}, but it may not be read", "Give auth that may read objects."),
    FaultKind.NOT_FOUND: ("does not exist: there is no bucket {bucket!r}", "Check its name."),
    FaultKind.NO_BUCKET: ("does not exist: there is no bucket {bucket!r}", "Check its name."),
    FaultKind.INVALID_NAME: (
        "has an object whose name cannot be a path below the mount",
        "Name a prefix beside it: `..`, `.` and empty folders in a name cannot be mounted.",
    ),
    FaultKind.WRONG_REGION: (
        "is a bucket of another region",
        "Give aws_region in the secret, or set AWS_REGION.",
    ),
    FaultKind.CLOCK: ("cannot be read: {reason}", CLOCK_STEP),
    FaultKind.NO_RANGES: ("is on a server that sends whole objects only", "Use another server."),
}
"""Kind -> message after the source's URL, next step."""


class BucketSource(protocol.RemoteSource):
    """The objects below a prefix of a bucket, listed with the first credentials that may."""

    def __init__(self, request: protocol.SourceRequest) -> None:
        super().__init__(request)
        self._plan = request.plan
        with self._translate_errors():
            self._address = connect.parse_bucket_url(self._source)
            self._accesses = list_accesses(request.plan, self._address, request.secret)
        self._access = connect.ANONYMOUS
        self._store: Any = None
        self._base = ""

    def list_files(self) -> Listing:
        """List with the first credentials that the server accepts, and keep them for reads."""
        for access in self._accesses:
            try:
                return self._list_with(access)
            except PermissionError:
                continue
            except protocol.TransientError:
                if access.has_credentials:
                    raise
        tried = " or with ".join(access.name for access in self._accesses)
        hint = "Check that it is valid, and that it may list and read there."
        if not self._plan.auth.method:
            hint = "Give auth: CUSTOM_SECRET with auth_secret_name reads any bucket."
        raise self._error(f"may not be read with {tried}", hint)

    def _list_with(self, access: connect.Access) -> Listing:
        with self._translate_errors():
            store = self._connect(access, self._limits)
            files, base = self._list_prefix(store)
        self._access, self._store, self._base = access, store, base
        plan = self._plan
        paths = [file.path for file in files]
        chosen = set(filter_paths(paths, allow=plan.allow_patterns, ignore=plan.ignore_patterns))
        # A change of a file that is not selected is no new revision.
        revision = compute_revision(file for file in files if file.path in chosen)
        return Listing(revision, tuple(files))

    def _connect(self, access: connect.Access, limits: connect.Limits) -> Any:
        try:
            return connect.create_bucket_store(self._address, access, limits=limits)
        except (BaseError, ValueError, TypeError):
            # The text of the error may hold a part of the secret.
            hint = "Check the form of the secret and of the address."
            raise self._error(f"cannot be opened with {access.name}", hint) from None

    def _list_prefix(self, store: Any) -> tuple[list[ListedFile], str]:
        """Return the files below the prefix, and the start of their keys in the bucket."""
        prefix = self._address.prefix
        base = f"{prefix}/" if prefix else ""
        found: list[tuple[str, Any]] = []
        batches: Any = obstore.list(  # pyright: ignore[reportUnknownMemberType] (arrow is optional)
            store, prefix or None, chunk_size=1000
        )
        for batch in batches:
            found += [(str(item["path"]), item) for item in batch]
            if len(found) > _MAX_OBJECTS:
                hint = "Name a prefix with fewer."
                raise self._error(f"lists more than {_MAX_OBJECTS:,} objects", hint)
        parents = (accumulate(path.split("/")[:-1], "{}/{}".format) for path, _ in found)
        folders = set(chain.from_iterable(parents))
        # Consoles create empty objects as folders.
        files = [
            ListedFile(path.removeprefix(base), item["size"], version_tag=_tag(item))
            for path, item in found
            if (item["size"] or path not in folders) and not is_bookkeeping(path.removeprefix(base))
        ]
        if files or not prefix:
            return files, base
        folder, slash, name = prefix.rpartition("/")
        try:
            item = obstore.head(store, prefix)
        except FileNotFoundError:
            return [], base
        return [ListedFile(name, item["size"], version_tag=_tag(item))], folder + slash

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[memoryview]:
        end = (file.size or 0) if length < 0 else start + length
        options: Any = {}
        if end - start != file.size:  # else it works on a server without ranges, too
            options["range"] = (start, end)
        if file.version_tag.startswith('"'):
            options["if_match"] = file.version_tag
        with self._translate_errors(file.path):
            limits = replace(self._limits, total=_MAX_STREAM_SECONDS)
            store = self._connect(self._access, limits) if length < 0 else self._store
            answer = obstore.get(store, self._base + file.path, options=options)
            yield from self._iter_block(file, answer, _tag(answer.meta), end - start)

    @contextmanager
    def _translate_errors(self, path: str = "") -> Generator[None]:
        try:
            yield
        except (StoreError, IdentityError) as error:
            text = f"cannot be read: {error.message.rstrip('.')}"
            raise self._error(text, error.next_step) from None
        except Exception as error:
            if not is_transfer_error(error):
                raise
            raise self._explain(error, path) from None

    def _explain(self, error: Exception, path: str) -> Exception:
        """Return the error to raise; PermissionError for a listing that is denied."""
        fault = classify_fault(error)
        if fault.kind is FaultKind.DENIED and not path:
            return PermissionError()
        if fault.kind in (FaultKind.NOT_FOUND, FaultKind.CHANGED) and path:
            return self._changed_error(path)
        if fault.kind in _SENTENCES:
            text, hint = _SENTENCES[fault.kind]
            no_ranges = fault.kind is FaultKind.NO_RANGES
            kind = protocol.RangesUnsupported if no_ranges else WeightsError
            text = text.format(path=path, bucket=self._address.bucket, reason=fault.reason)
            return self._error(text, hint, kind)
        at = f" at {path}" if path else ""
        text = f"could not be read{at} ({fault.reason or self._no_answer})"
        hint = "Check the network, and try again: downloaded files are kept."
        return self._error(text, hint, protocol.TransientError)


def _tag(item: Any) -> str:
    """Return an object's version. Some servers quote an ETag in an object, but not in a list."""
    tag = str(item.get("e_tag") or "")
    if tag:
        return tag if tag.startswith(('"', "W/")) else f'"{tag}"'
    return str(item.get("version") or item.get("last_modified") or "")
