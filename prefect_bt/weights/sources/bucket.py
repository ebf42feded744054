"""A folder of a bucket as a weights source: s3, r2, cw, gs, azure.

`s3://bucket/models/llama` is every object below `models/llama/`, or the one object of that name.
Reads are pinned by ETag: an object that is replaced meanwhile is an error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from typing import Any, Final

from prefect_bt.credentials import cloud_identity
from prefect_bt.errors import IdentityError, StoreError, WeightsError
from prefect_bt.object_store import connect
from prefect_bt.object_store.address import BucketUrl, parse_bucket_url
from prefect_bt.object_store.connect import ANONYMOUS, Access, Limits
from prefect_bt.object_store.faults import FaultKind, classify_fault, is_transfer_error
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources import secret_fields
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.patterns import filter_paths
from prefect_bt.weights.sources.protocol import RangesUnsupported, SourceRequest, TransientError

_MAX_REQUEST_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 1 << 20
_MAX_OBJECTS: Final = 1_000_000
_MAX_STREAM_SECONDS: Final = 7 * 24 * 3600.0
_ROLES: Final = {
    "AWS_ASSUME_ROLE": "the assumed role",
    "AWS_OIDC": "the web identity's role",
    "GCP_OIDC": "the workload identity",
}
_SENTENCES: Final = {
    FaultKind.DENIED: ("lists {path}, but it may not be read", "Give auth that may read objects."),
    FaultKind.CHANGED: (
        "changed while it was read: {path} is another object now",
        "Push again when nothing writes there.",
    ),
    FaultKind.NO_BUCKET: ("does not exist: there is no bucket {bucket!r}", "Check its name."),
    FaultKind.INVALID_NAME: (
        "has an object whose name cannot be below the mount",
        "Name a prefix beside it: `..`, `.` and empty folders in a name cannot be mounted.",
    ),
    FaultKind.WRONG_REGION: (
        "is a bucket of another region",
        "Give aws_region in the secret, or set AWS_REGION.",
    ),
    FaultKind.NO_RANGES: ("is on a server that sends whole objects only", "Use another server."),
}
"""Kind -> message after the source's URL, next step."""


class BucketSource:
    """Implements Source of sources.protocol."""

    pinned_revision = ""
    detects_changes = True

    def __init__(self, request: SourceRequest) -> None:
        self._plan = request.plan
        stall = request.stall_timeout
        # The caller retries. A request has minutes at most, however slowly its bytes arrive.
        self._limits = Limits(read=stall, total=max(300.0, 10 * stall), retries=0)
        with _explain_for(request.plan):
            self._address = parse_bucket_url(request.plan.source)
            self._accesses = list_accesses(request.plan, self._address, request.secret)
        self._access = ANONYMOUS
        self._store: Any = None
        self._base = ""
        self._sdk: Any = import_module("obstore")

    @classmethod
    def open(cls, request: SourceRequest) -> BucketSource:
        return cls(request)

    def list_files(self) -> Listing:
        """List with the first credentials that the server accepts, and keep them for reads."""
        for access in self._accesses:
            try:
                return self._list_with(access)
            except PermissionError:
                continue
            except TransientError:
                if access.has_credentials:
                    raise
        tried = " or with ".join(access.name for access in self._accesses)
        hint = "Check that it is valid, and that it may list and read there."
        if not self._plan.auth.method:
            hint = "Give auth: CUSTOM_SECRET with auth_secret_name reads any bucket."
        raise self._error(f"may not be read with {tried}", hint)

    def _list_with(self, access: Access) -> Listing:
        store = self._connect(access, self._limits)
        with self._translate_errors():
            files, base = self._list_prefix(store)
        self._access, self._store, self._base = access, store, base
        plan = self._plan
        paths = [file.path for file in files]
        chosen = set(filter_paths(paths, allow=plan.allow_patterns, ignore=plan.ignore_patterns))
        # A change of a file that is not selected is no new revision.
        revision = compute_revision(file for file in files if file.path in chosen)
        return Listing(plan.source, revision, tuple(files))

    def _connect(self, access: Access, limits: Limits) -> Any:
        errors: Any = import_module("obstore.exceptions")
        try:
            with _explain_for(self._plan):
                return connect.create_bucket_store(self._address, access, limits=limits)
        except (errors.BaseError, ValueError, TypeError):
            # The text of the error may hold a part of the secret.
            hint = "Check the form of the secret and of the address."
            raise self._error(f"cannot be opened with {access.name}", hint) from None

    def _list_prefix(self, store: Any) -> tuple[list[ListedFile], str]:
        """Return the files below the prefix, and the start of their keys in the bucket."""
        prefix = self._address.prefix
        base = f"{prefix}/" if prefix else ""
        batches = self._sdk.list(store, prefix or None, chunk_size=1000)
        found: list[tuple[str, Any]] = []
        for batch in batches:
            found += [(str(item["path"]), item) for item in batch]
            if len(found) > _MAX_OBJECTS:
                hint = "Name a prefix with fewer."
                raise self._error(f"lists more than {_MAX_OBJECTS:,} objects", hint)
        folders = {parent for path, _ in found for parent in _parents(path)}
        files = [
            _listed_file(path.removeprefix(base), item)
            for path, item in found
            # Consoles create empty objects as folders.
            if item["size"] or path not in folders
        ]
        if files or not prefix:
            return files, base
        folder, slash, name = prefix.rpartition("/")
        try:
            return [_listed_file(name, self._sdk.head(store, prefix))], folder + slash
        except FileNotFoundError:
            return [], base

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[memoryview]:
        size = file.size or 0
        end = size if length < 0 else start + length
        with self._translate_errors(file):
            if start == 0 and end == size > _MAX_REQUEST_BYTES:
                # Works on a server without ranges, too.
                limits = replace(self._limits, total=_MAX_STREAM_SECONDS)
                answer = self._get(self._connect(self._access, limits), file, {})
                yield from map(memoryview, answer.stream(min_chunk_size=_PIECE_BYTES))
                return
            for at in range(start, end, _MAX_REQUEST_BYTES):
                until = min(end, at + _MAX_REQUEST_BYTES)
                options = {"range": (at, until)} if until - at < size else {}
                left = until - at
                # `bytes` would hold in memory whatever the server sends.
                pieces = self._get(self._store, file, options).stream(min_chunk_size=_PIECE_BYTES)
                for piece in pieces:
                    yield memoryview(piece)[:left]
                    left -= len(piece)
                    if left < 0:
                        return
                if left:
                    return  # the caller counts

    def _get(self, store: Any, file: ListedFile, options: dict[str, Any]) -> Any:
        if file.version_tag.startswith('"'):
            options["if_match"] = file.version_tag
        answer = self._sdk.get(store, self._base + file.path, options=options)
        if _tag(answer.meta) != file.version_tag:
            raise self._fault_error(FaultKind.CHANGED, file)
        return answer

    @contextmanager
    def _translate_errors(self, file: ListedFile | None = None) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if not is_transfer_error(error):
                raise
            raise self._translate(error, file) from None

    def _translate(self, error: Exception, file: ListedFile | None) -> Exception:
        fault = classify_fault(error)
        kind = fault.kind
        if kind in (FaultKind.NOT_FOUND, FaultKind.CHANGED):
            kind = FaultKind.CHANGED if file else FaultKind.NO_BUCKET
        if kind is FaultKind.DENIED and file is None:
            return PermissionError()
        if kind in _SENTENCES:
            return self._fault_error(kind, file)
        reason = fault.reason or f"no usable answer, or {self._limits.read:g} s without a byte"
        text = f"could not be read{f' at {file.path}' if file else ''} ({reason})"
        hint = "Check the network, and push again: what is here already is kept."
        return self._error(text, hint, TransientError)

    def _fault_error(self, kind: FaultKind, file: ListedFile | None) -> WeightsError:
        message, hint = _SENTENCES[kind]
        text = message.format(path=file.path if file else "", bucket=self._address.bucket)
        error = RangesUnsupported if kind is FaultKind.NO_RANGES else WeightsError
        return self._error(text, hint, error)

    def _error(self, text: str, hint: str, kind: type[WeightsError] = WeightsError) -> WeightsError:
        source = self._plan.source
        return kind(f"{source} {text}.", source=source, next_step=hint)


def list_accesses(plan: WeightsPlan, address: BucketUrl, secret: str | None) -> list[Access]:
    """Return the credentials to try, in order.

    With auth, only those that it names; else those of this machine, then none, for public buckets.
    WeightsError for a malformed secret, StoreError for unusable AWS settings.
    """
    if name := _ROLES.get(plan.auth.method):
        request = partial(_request_credentials, plan)
        return [connect.create_access(name, request, region=plan.auth.region)]
    if secret is not None:
        return [_secret_access(plan, address, secret)]
    machine = connect.find_machine_access(address)
    return [machine, ANONYMOUS] if machine else [ANONYMOUS]


def _secret_access(plan: WeightsPlan, address: BucketUrl, secret: str) -> Access:
    name, region = f"the secret {plan.secret!r}", ""
    if address.scheme == "gs":
        key = secret_fields.parse_google_secret(plan, secret)
        return Access(name, lambda: {"service_account_key": key})
    if address.scheme == "azure":
        fields = secret_fields.parse_azure_secret(plan, secret)
    else:
        fields = secret_fields.parse_s3_secret(plan, secret).model_dump()
        region = fields.pop("region") or secret_fields.DEFAULT_REGION
    credentials = _rename({**fields, "expires_at": None})
    return connect.create_access(name, lambda: credentials, region=region)


def _request_credentials(plan: WeightsPlan) -> dict[str, Any]:
    auth = plan.auth
    with _explain_for(plan):
        if auth.method == "GCP_OIDC":
            account, provider = auth.service_account, auth.identity_provider
            keys = cloud_identity.exchange_google_token(account, provider)
        elif auth.method == "AWS_OIDC":
            keys = cloud_identity.assume_role_with_web_identity(auth.role_arn, auth.region)
        else:
            keys = cloud_identity.assume_role(auth.role_arn, auth.region)
    return _rename(asdict(keys))


def _rename(credentials: dict[str, Any]) -> dict[str, Any]:
    """Return credentials by the names that obstore has for them."""
    names = {"session_token": "token", "account_key": "access_key"}
    return {names.get(name, name): value or None for name, value in credentials.items()}


@contextmanager
def _explain_for(plan: WeightsPlan) -> Generator[None]:
    """Turn errors about addresses and credentials into a WeightsError that names the source."""
    try:
        yield
    except (StoreError, IdentityError) as error:
        source = "" if plan.source in error.message else f"{plan.source}: "
        text = source + error.message
        raise WeightsError(text, source=plan.source, next_step=error.next_step) from None


def _listed_file(path: str, item: Any) -> ListedFile:
    return ListedFile(path, int(item["size"]), version_tag=_tag(item))


def _tag(item: Any) -> str:
    """Return an object's version. Some servers quote an ETag in an object, but not in a list."""
    tag = str(item.get("e_tag") or "")
    if tag:
        return tag if tag.startswith(('"', "W/")) else f'"{tag}"'
    return str(item.get("version") or item.get("last_modified") or "")


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
