"""Buckets as stores (urls.py says which), and `memory://` for tests.

obstore moves whole objects, ranges and lists; a large file goes to an S3-like bucket in parts of
our own (multipart.py), because those can be resumed and given up. Transport faults are retried by
the libraries, bounded, so nothing above has to repeat a single request.

Nothing is believed: the server is sent the SHA-256 of what it gets, and what it says it got is
compared. A store or a proxy that loses bytes and answers 200 is noticed at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import obstore
from obstore import exceptions
from obstore.store import MemoryStore

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.object_store.key_syntax import validate_key
from prefect_bt.object_store.multipart import (
    CHECKSUM_ERROR_CODES,
    MIN_PART_BYTES,
    CorruptUpload,
    DigestMismatch,
    MultipartUploader,
)
from prefect_bt.object_store.protocols import ByteCallback, ObjectInfo, UnfinishedUpload
from prefect_bt.object_store.urls import (
    S3_LIKE,
    BucketUrl,
    create_object_store,
    create_s3_client,
    parse_bucket_url,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_IN_FLIGHT: Final = 24 * 1024 * 1024
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_READERS: Final = 4
_MAX_SEND_ATTEMPTS: Final = 3
"""How often bytes that did not arrive as they were are sent."""
_OWN_PREFIXES: Final = ("training_projects", "weights")
"""Where files lie; what others keep in the same bucket is never looked at."""
_MAX_PRESIGN_SECONDS: Final = 7 * 24 * 3600
_ACCESS_DENIED_ERRORS: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    PermissionError,
)
_ACCESS_DENIED_CODES: Final = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "403",
    }
)


class BucketStore:
    """Implements object_store.protocols.Store on one bucket (and a prefix in it)."""

    def __init__(self, inner: ObjectStore, *, url: str, address: BucketUrl | None = None) -> None:
        self._inner, self._url, self._address = inner, url, address
        self._lock = threading.Lock()
        self._parts: MultipartUploader | None = None
        self._tags_are_md5: bool | None = None
        """Whether this bucket's ETags tell the bytes; None until one has been seen."""

    @classmethod
    def open(cls, url: str) -> BucketStore:
        """Connects lazily: a wrong bucket or credential shows at the first verb."""
        if url.startswith("memory:"):
            return cls(MemoryStore(), url=url)
        address = parse_bucket_url(url)
        return cls(create_object_store(address), url=url, address=address)

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        with self._translate_errors(key) as path:
            return bytes(obstore.get(self._inner, path).bytes())

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        with self._translate_errors(key) as path:
            # The size first: servers answer a range past the end with an error of their own.
            size = self._size(path)
            length = min(length, size - start)
            if length <= 0:
                return b""
            return bytes(obstore.get_range(self._inner, path, start=start, length=length))

    def put(self, key: str, data: bytes) -> None:
        with self._translate_errors(key) as path:
            self._put(path, data)

    def create(self, key: str, data: bytes) -> None:
        with self._translate_errors(key) as path:
            put = obstore.put(self._inner, path, data, mode="create")
            if not self._is_stored_intact(path, data, str(put.get("e_tag") or "")):
                obstore.delete(self._inner, path)
                raise CorruptUpload

    def upload(self, key: str, source: Path) -> None:
        self._upload(key, source, sha256="", on_bytes=None)

    def upload_verified(
        self, key: str, source: Path, *, sha256: str = "", on_bytes: ByteCallback | None = None
    ) -> str:
        return self._upload(key, source, sha256=sha256, on_bytes=on_bytes)

    def abort_uploads(self, prefix: str) -> int:
        with self._translate_errors(prefix) as path:
            multipart = self._multipart()
            return multipart.abort_uploads(path) if multipart else 0

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        for folder in _OWN_PREFIXES:
            with self._translate_errors(folder) as path:
                multipart = self._multipart()
                found = list(multipart.list_unfinished_uploads(path)) if multipart else []
            yield from found

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        with self._translate_errors(upload.key):
            multipart = self._multipart()
            if multipart:
                multipart.abort_upload(upload)

    def presign(self, key: str, *, seconds: int) -> str:
        seconds = min(seconds, _MAX_PRESIGN_SECONDS)
        with self._translate_errors(key) as path:
            multipart = self._multipart()
            if multipart:
                return multipart.presign(path, seconds=seconds)
            if isinstance(self._inner, MemoryStore):
                return ""
            signed: Any = obstore.sign(
                cast("Any", self._inner), "GET", path, timedelta(seconds=seconds)
            )
            return str(signed)

    def download(self, key: str, target: Path) -> None:
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with self._translate_errors(key) as path, temporary.open("xb") as writer:
                self._download_ranges(path, writer.fileno())
            with self._translate_errors(key):
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix:
            validate_key(prefix, url=self._url)
        with self._translate_errors(prefix or "the whole store", check=False):
            batches = obstore.list(  # pyright: ignore[reportUnknownMemberType] (arrow is optional)
                self._inner, prefix or None, chunk_size=1000
            )
            for batch in batches:
                for item in batch:
                    yield ObjectInfo(item["path"], item["size"], item["last_modified"].timestamp())

    def delete(self, key: str) -> None:
        with self._translate_errors(key) as path, contextlib.suppress(FileNotFoundError):
            obstore.delete(self._inner, path)

    # -- writing ------------------------------------------------------------------------------

    def _put(self, path: str, data: bytes) -> None:
        for _ in range(_MAX_SEND_ATTEMPTS):
            try:
                put = obstore.put(self._inner, path, data, use_multipart=False)
            except exceptions.BaseError as error:
                if _code_in(error) in CHECKSUM_ERROR_CODES:
                    continue
                raise
            if self._is_stored_intact(path, data, str(put.get("e_tag") or "")):
                return
            obstore.delete(self._inner, path)
        raise CorruptUpload

    def _is_stored_intact(self, path: str, data: bytes, tag: str) -> bool:
        """Whether the store has these bytes, by its ETag where that is their MD5."""
        if self._address is None or self._address.scheme not in S3_LIKE:
            return True
        if self._tags_are_md5 is False:
            return True
        if tag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
            self._tags_are_md5 = True
            return True
        if self._tags_are_md5:
            return False
        # Encrypted buckets have other tags: the bytes themselves tell.
        if bytes(obstore.get(self._inner, path).bytes()) != data:
            return False
        self._tags_are_md5 = False
        return True

    def _upload(self, key: str, source: Path, *, sha256: str, on_bytes: ByteCallback | None) -> str:
        validate_key(key, url=self._url)
        with source.open("rb") as reader:
            size = source.stat().st_size
            with self._translate_errors(key) as path:
                multipart = self._multipart() if size > MIN_PART_BYTES else None
                if size <= MIN_PART_BYTES:
                    data = reader.read(size)
                    digest = hashlib.sha256(data)
                    _check_digest(digest.hexdigest(), sha256)
                    self._put(path, data)
                    if on_bytes is not None:
                        on_bytes(size)
                    return digest.hexdigest()
                if multipart:
                    return multipart.upload(path, reader, sha256=sha256, on_bytes=on_bytes)
                return self._stream(path, reader.read, size, sha256=sha256, on_bytes=on_bytes)

    def _stream(
        self,
        path: str,
        read: Callable[[int], bytes],
        size: int,
        *,
        sha256: str,
        on_bytes: ByteCallback | None,
    ) -> str:
        """Parts by obstore, for stores that have others than S3's; it aborts them on an error."""
        digest, part = hashlib.sha256(), max(MIN_PART_BYTES, -(-size // 9000))

        def chunks() -> Iterator[bytes]:
            while chunk := read(_CHUNK_BYTES):
                digest.update(chunk)
                yield chunk
                if on_bytes is not None:
                    on_bytes(len(chunk))
            _check_digest(digest.hexdigest(), sha256)

        concurrency = max(1, _IN_FLIGHT // part)
        obstore.put(self._inner, path, chunks(), chunk_size=part, max_concurrency=concurrency)
        return digest.hexdigest()

    def _multipart(self) -> MultipartUploader | None:
        if self._address is None or self._address.scheme not in S3_LIKE:
            return None
        with self._lock:
            if self._parts is None:
                prefix = f"{self._address.prefix}/" if self._address.prefix else ""
                client = create_s3_client(self._address)
                self._parts = MultipartUploader(client, bucket=self._address.bucket, prefix=prefix)
            return self._parts

    # -- reading ------------------------------------------------------------------------------

    def _size(self, path: str) -> int:
        try:
            return obstore.head(self._inner, path)["size"]
        except FileNotFoundError:
            obstore.get(self._inner, path)  # says whether it is the bucket that is not there
            raise

    def _download_ranges(self, path: str, descriptor: int) -> None:
        """The object's bytes into a file: in ranges, a few at a time."""
        size = self._size(path)
        os.truncate(descriptor, size)

        def fetch(start: int) -> None:
            length = min(_CHUNK_BYTES, size - start)
            data = obstore.get_range(self._inner, path, start=start, length=length)
            if len(data) != length:
                raise exceptions.GenericError(f"{len(data)} of {length} bytes arrived")
            os.pwrite(descriptor, data, start)

        with ThreadPoolExecutor(_READERS, thread_name_prefix="range") as pool:
            jobs = [pool.submit(fetch, start) for start in range(0, size, _CHUNK_BYTES)]
            try:
                for job in jobs:
                    job.result()
            finally:
                for job in jobs:
                    job.cancel()

    # -- faults -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translate_errors(self, key: str, *, check: bool = True) -> Generator[str]:
        """The libraries' exceptions in, ours out."""
        if check:
            validate_key(key, url=self._url)
        try:
            yield key
        except FileNotFoundError as error:
            raise self._not_found(key, error) from error
        except exceptions.AlreadyExistsError as error:
            what = f"{key} is already in {self._url}."
            raise ObjectExists(what, url=self._url, key=key) from error
        except DigestMismatch as error:
            what = f"The bytes for {key} are not the ones announced: the file changed meanwhile."
            raise StoreError(what, url=self._url, key=key) from error
        except CorruptUpload as error:
            what = f"{self._url} acknowledged other bytes for {key} than were sent to it."
            step = "Something between here and the store changes or loses bytes: a proxy, a disk."
            raise StoreError(what, url=self._url, key=key, next_step=step) from error
        except _ACCESS_DENIED_ERRORS as error:
            raise self._access_denied_error(key) from error
        except (exceptions.BaseError, OSError) as error:
            raise self._error_from_code(key, error, _code_in(error)) from error
        except Exception as error:
            # botocore's exceptions, without importing it for stores that need it not.
            if not type(error).__module__.startswith(("botocore", "boto3", "s3transfer")):
                raise
            raise self._boto_error(key, error) from error

    def _boto_error(self, key: str, error: Exception) -> StoreError:
        if "Credential" in type(error).__name__:
            return self._access_denied_error(key)
        answer: Any = getattr(error, "response", {})
        return self._error_from_code(key, error, str(answer.get("Error", {}).get("Code", "")))

    def _error_from_code(self, key: str, error: Exception, code: str) -> StoreError:
        """By what the server calls the fault, in its own words."""
        if code in _ACCESS_DENIED_CODES:
            return self._access_denied_error(key)
        if code in {"NoSuchBucket", "NoSuchKey", "404"}:
            return self._not_found(key, error)
        what = f"{self._url} failed for {key}: {code or _first_line(error)}."
        return StoreError(what, url=self._url, key=key)

    def _not_found(self, key: str, error: Exception) -> StoreError:
        if "NoSuchBucket" in str(error) and self._address is not None:
            return StoreError(
                f"The bucket {self._address.bucket!r} of {self._url} does not exist.",
                url=self._url,
                key=key,
                next_step="Create it, or name another one in PREFECT_BT_STORE.",
            )
        return ObjectNotFound(f"No {key} in {self._url}.", url=self._url, key=key)

    def _access_denied_error(self, key: str) -> StoreError:
        with self._lock:
            # The next try finds the credentials of its own moment.
            self._parts = None
            if self._address is not None:
                self._inner = create_object_store(self._address)
        return StoreError(
            f"{self._url} refuses access to {key}.",
            url=self._url,
            key=key,
            next_step="Check the credentials (expired?) and their rights on this bucket.",
        )


def _code_in(error: BaseException) -> str:
    """The code of an S3 error document, which obstore hands on as text."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _check_digest(digest: str, announced: str) -> None:
    if announced not in {"", digest}:
        raise DigestMismatch
