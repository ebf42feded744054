"""Buckets as stores, through obstore: `s3://bucket/prefix`, and `memory://` for tests.

One adapter; a further cloud is a line in `_connect`. Credentials of s3 come from boto3's chain, the
endpoint from AWS_ENDPOINT_URL, both read by the libraries themselves. Transport faults are retried
by obstore (bounded, below), so nothing above has to repeat a single request.

A large file travels in parts and becomes visible when the last one is acknowledged; an upload whose
bytes turn out to be other than announced is aborted before that. Every part carries a SHA-256
checksum that the server verifies.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, S3Store

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.objects.keys import check_key
from prefect_bt.objects.protocols import ObjectInfo, Tick

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PART: Final = 8 * 1024 * 1024
_MAX_PARTS: Final = 9_000
_IN_FLIGHT: Final = 24 * 1024 * 1024
_READ: Final = 4 * 1024 * 1024
_REFUSED: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    PermissionError,
)


class _Mismatch(Exception):
    """The source's bytes are not those announced; never leaves this module."""


class BucketStore:
    """Implements objects.protocols.Store on one bucket (and a prefix in it)."""

    def __init__(self, inner: ObjectStore, *, url: str) -> None:
        self._inner, self._url = inner, url

    @classmethod
    def open(cls, url: str) -> BucketStore:
        """Connects lazily: a wrong bucket or credential shows at the first verb."""
        return cls(_connect(url), url=url)

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        with self._mapped(key) as path:
            return bytes(obstore.get(self._inner, path).bytes())

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        with self._mapped(key) as path:
            # The size first: servers answer a range past the end with an error of their own.
            size = obstore.head(self._inner, path)["size"]
            length = min(length, size - start)
            if length <= 0:
                return b""
            return bytes(obstore.get_range(self._inner, path, start=start, length=length))

    def put(self, key: str, data: bytes) -> None:
        with self._mapped(key) as path:
            obstore.put(self._inner, path, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> None:
        with self._mapped(key) as path:
            obstore.put(self._inner, path, data, mode="create")

    def upload(self, key: str, source: Path) -> None:
        self._upload(key, source, sha256="")

    def upload_exact(
        self, key: str, source: Path, *, sha256: str, tick: Tick | None = None
    ) -> None:
        self._upload(key, source, sha256=sha256)

    def abort_uploads(self, prefix: str) -> int:
        return 0

    def presign(self, key: str, *, seconds: int) -> str:
        return ""

    def download(self, key: str, target: Path) -> None:
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with self._mapped(key) as path, temporary.open("xb") as writer:
                for chunk in obstore.get(self._inner, path).stream(min_chunk_size=_READ):
                    writer.write(chunk)
            with self._mapped(key):
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix:
            check_key(prefix, url=self._url)
        with self._mapped(prefix or "the whole store", check=False):
            batches = obstore.list(  # pyright: ignore[reportUnknownMemberType] (arrow is optional)
                self._inner, prefix or None, chunk_size=1000
            )
            for batch in batches:
                for item in batch:
                    yield ObjectInfo(item["path"], item["size"], item["last_modified"].timestamp())

    def delete(self, key: str) -> None:
        with self._mapped(key) as path, contextlib.suppress(FileNotFoundError):
            obstore.delete(self._inner, path)

    def _upload(self, key: str, source: Path, *, sha256: str) -> None:
        check_key(key, url=self._url)
        with source.open("rb") as reader:
            size = source.stat().st_size
            part = max(_PART, -(-size // _MAX_PARTS))
            with self._mapped(key) as path:
                # An iterator: obstore aborts the parts when it raises, and never reads ahead of us.
                obstore.put(
                    self._inner,
                    path,
                    _chunks(reader.read, sha256) if size > _PART else _whole(reader.read(), sha256),
                    use_multipart=size > _PART,
                    chunk_size=part,
                    max_concurrency=max(1, _IN_FLIGHT // part),
                )

    @contextlib.contextmanager
    def _mapped(self, key: str, *, check: bool = True) -> Generator[str]:
        """obstore's exceptions in, ours out."""
        if check:
            check_key(key, url=self._url)
        try:
            yield key
        except FileNotFoundError as error:
            raise ObjectNotFound(f"No {key} in {self._url}.", url=self._url, key=key) from error
        except exceptions.AlreadyExistsError as error:
            what = f"{key} is already in {self._url}."
            raise ObjectExists(what, url=self._url, key=key) from error
        except _Mismatch as error:
            what = f"The bytes for {key} are not the ones announced: the file changed meanwhile."
            raise StoreError(what, url=self._url, key=key) from error
        except _REFUSED as error:
            what = f"{self._url} refuses access to {key}."
            step = "Check the credentials and their rights on this bucket."
            raise StoreError(what, url=self._url, key=key, next_step=step) from error
        except (exceptions.BaseError, OSError) as error:
            what = f"{self._url} failed for {key}: {_first_line(error)}."
            raise StoreError(what, url=self._url, key=key) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _whole(data: bytes, sha256: str) -> bytes:
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise _Mismatch
    return data


def _chunks(read: Callable[[int], bytes], sha256: str) -> Iterator[bytes]:
    digest = hashlib.sha256()
    while chunk := read(_READ):
        digest.update(chunk)
        yield chunk
    if sha256 and digest.hexdigest() != sha256:
        raise _Mismatch


def _connect(url: str) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return MemoryStore()
    if not parts.netloc:
        raise StoreError(f"{url!r} names no bucket.", url=url, next_step="s3://bucket/prefix")
    from obstore.auth.boto3 import (
        Boto3CredentialProvider,
    )

    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        checksum_algorithm="SHA256",
        credential_provider=Boto3CredentialProvider(),
        client_options={"allow_http": True, "connect_timeout": timedelta(seconds=10)},
        retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=30)},
    )
