"""A bucket as a store, and `memory://` for tests.

obstore reads, lists and writes small objects; multipart.py uploads large files to S3-like buckets,
because its uploads can be resumed and aborted. The libraries retry transport errors within limits.

Every write is verified: the server gets the SHA-256 of the bytes, and its answer is compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, cast

import obstore
from obstore import exceptions
from obstore.store import MemoryStore

from prefect_bt.errors import InvalidKey, ObjectExists, ObjectNotFound, StoreError
from prefect_bt.filesystem.rehash import ByteCallback, ignore_progress
from prefect_bt.filesystem.replacement import open_replacement
from prefect_bt.object_store import connect, multipart
from prefect_bt.object_store.faults import CLOCK_STEP, FaultKind, classify_fault, is_transfer_error
from prefect_bt.object_store.protocols import CHANGED_SOURCE, ObjectInfo, validate_key

_LIMITS: Final = connect.Limits()
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_MAX_KEY_BYTES: Final = 1024
"""Of S3, Google Cloud Storage and Azure."""
_READERS: Final = 4
_OWN_PREFIXES: Final = ("training_projects", "weights", "uploads")
"""Folders of our objects; other folders of a shared bucket are never read."""
_MAX_PRESIGN_SECONDS: Final = 7 * 24 * 3600
_ERRORS: Final = {
    FaultKind.NOT_FOUND: ("No {key} in {url}.", ""),
    FaultKind.EXISTS: ("{key} is already in {url}.", ""),
    FaultKind.NO_BUCKET: (
        "The bucket of {url} does not exist.",
        "Create it, or name another one in PREFECT_BT_STORE.",
    ),
    FaultKind.DENIED: (
        "{url} refuses access to {key}.",
        "Check the credentials (expired?) and their rights on this bucket.",
    ),
    FaultKind.CLOCK: ("{url} refuses every request: {reason}.", CLOCK_STEP),
    FaultKind.CHANGED: (CHANGED_SOURCE, ""),
    FaultKind.CHECKSUM: (
        "{url} received other bytes for {key} than were sent to it.",
        "A proxy or a disk on the way to the store changes or loses bytes.",
    ),
}
_CLASSES: Final = {FaultKind.NOT_FOUND: ObjectNotFound, FaultKind.EXISTS: ObjectExists}


class BucketStore:
    """Implements Store on one bucket (and a prefix in it)."""

    def __init__(self, url: str) -> None:
        """Open a bucket without a request: a wrong name fails at the first operation."""
        self.url, self._address = url, connect.parse_bucket_url(url)
        self._connect()
        self._tags_are_md5: bool | None = None
        """Whether this bucket's ETags are MD5 digests; None until an object was written."""

    def _connect(self) -> None:
        bucket = self._address
        if bucket.scheme == "memory":
            self._inner = MemoryStore()
        elif access := connect.find_machine_access(bucket):
            self._inner = connect.create_bucket_store(bucket, access, limits=_LIMITS, is_store=True)
        else:
            what = f"No credentials for {bucket.url} were found."
            hint = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
            raise StoreError(what, url=bucket.url, next_step=hint)
        self._uploader = multipart.MultipartUploader(bucket, _LIMITS)

    def get(self, key: str) -> bytes:
        with self._translate_errors(key):
            return bytes(obstore.get(self._inner, key).bytes())

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        end = start + max(length, 1)  # an empty range is invalid
        with self._translate_errors(key):
            try:
                answer = obstore.get(self._inner, key, options={"range": (start, end)})
                return bytes(answer.bytes())[:length]
            except exceptions.BaseError as error:
                if classify_fault(error).kind is not FaultKind.PAST_END:
                    raise
                return b""

    def put(self, key: str, data: bytes) -> None:
        with self._translate_errors(key):
            self._put(key, data)

    def create(self, key: str, data: bytes) -> None:
        with self._translate_errors(key):
            self._put(key, data, mode="create")

    def upload_verified(
        self, key: str, source: Path, *, sha256: str = "", on_bytes: ByteCallback = ignore_progress
    ) -> str:
        with source.open("rb") as reader, self._translate_errors(key):
            size, digest = os.fstat(reader.fileno()).st_size, hashlib.sha256()
            data = multipart.read_parts(reader, size, _CHUNK_BYTES, digest, sha256)
            if size <= multipart.MIN_PART_BYTES:
                self._put(key, b"".join(data))
                on_bytes(size)
            elif self._address.is_s3_like:
                return self._uploader.upload(key, reader, sha256=sha256, on_bytes=on_bytes)
            else:  # obstore aborts the upload after an error
                length, senders = multipart.plan_parts(size)
                data = _count_bytes(data, on_bytes)
                obstore.put(self._inner, key, data, chunk_size=length, max_concurrency=senders)
            return digest.hexdigest()

    def list_unfinished_uploads(self, prefix: str = "") -> Iterator[ObjectInfo]:
        if not self._address.is_s3_like:
            return iter(())
        folders = (prefix,) if prefix else _OWN_PREFIXES
        with self._translate_errors(prefix, is_key=bool(prefix)):
            found = map(self._uploader.list_unfinished_uploads, folders)
            return iter(list(chain.from_iterable(found)))

    def abort_upload(self, upload: ObjectInfo) -> None:
        with self._translate_errors(upload.key):
            if self._address.is_s3_like:
                self._uploader.abort(upload.key, upload.upload_id)

    def presign(self, key: str, *, seconds: int) -> str:
        duration = timedelta(seconds=min(seconds, _MAX_PRESIGN_SECONDS))
        with self._translate_errors(key):
            if isinstance(self._inner, MemoryStore):
                return ""
            return str(obstore.sign(cast("Any", self._inner), "GET", key, duration))

    def download(self, key: str, target: Path) -> None:
        def fetch(start: int) -> None:
            length = min(_CHUNK_BYTES, size - start)
            data = obstore.get_range(self._inner, key, start=start, length=length)
            if len(data) != length:
                raise exceptions.GenericError(f"{len(data)} of {length} bytes arrived")
            os.pwrite(writer.fileno(), data, start)

        with self._translate_errors(key), open_replacement(target) as writer:
            try:
                size = obstore.head(self._inner, key)["size"]
            except (FileNotFoundError, exceptions.PermissionDeniedError):
                obstore.get(self._inner, key)  # its error has a body, which names the reason
                raise
            os.truncate(writer.fileno(), size)
            with ThreadPoolExecutor(_READERS, thread_name_prefix="range") as pool:
                # When one fails, `map` cancels those that have not begun.
                list(pool.map(fetch, range(0, size, _CHUNK_BYTES)))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._translate_errors(prefix, is_key=bool(prefix)):
            batches = obstore.list(  # pyright: ignore[reportUnknownMemberType] (arrow is optional)
                self._inner, prefix or None, chunk_size=1000
            )
            for item in chain.from_iterable(batches):
                yield ObjectInfo(item["path"], item["size"], item["last_modified"].timestamp())

    def delete(self, key: str) -> None:
        with self._translate_errors(key), suppress(FileNotFoundError):
            obstore.delete(self._inner, key)

    def _put(
        self, path: str, data: bytes, mode: Literal["create", "overwrite"] = "overwrite"
    ) -> None:
        is_corrupt = False
        for _ in range(multipart.MAX_SEND_ATTEMPTS):
            try:
                put = obstore.put(self._inner, path, data, use_multipart=False, mode=mode)
            except exceptions.BaseError as error:
                if classify_fault(error).kind is not FaultKind.CHECKSUM:
                    raise
                continue
            if self._is_stored_intact(path, data, put["e_tag"] or ""):
                return
            if mode == "create":  # else the next try replaces it, or what another writer put there
                obstore.delete(self._inner, path)
            else:
                is_corrupt = True
        if is_corrupt:  # an object that no try has reached is another writer's
            obstore.delete(self._inner, path)
        raise multipart.CorruptUpload

    def _is_stored_intact(self, path: str, data: bytes, tag: str) -> bool:
        """Return whether the store has these bytes: by its ETag if that is an MD5 digest."""
        if not self._address.is_s3_like or self._tags_are_md5 is False:
            return True
        if tag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
            self._tags_are_md5 = True
            return True
        # Encrypted buckets have other tags: compare the bytes of the object that was written.
        try:
            stored = obstore.get(self._inner, path, options={"if_match": tag}).bytes()
        except (exceptions.PreconditionError, FileNotFoundError):
            return True  # another writer has replaced or deleted it since
        if bytes(stored) != data:
            return False
        self._tags_are_md5 = False
        return True

    @contextmanager
    def _translate_errors(self, key: str, *, is_key: bool = True) -> Generator[None]:
        if is_key:
            validate_key(key, url=self.url)
            if len(key.encode(errors="surrogatepass")) > _MAX_KEY_BYTES:
                text = f"A key of {self.url} has at most {_MAX_KEY_BYTES} bytes: {key[:100]}..."
                raise InvalidKey(text, url=self.url, key=key, next_step="Use shorter names.")
        try:
            yield
        except Exception as error:
            if not is_transfer_error(error):
                raise
            (kind, reason), key = classify_fault(error), key or "the whole store"
            if kind is FaultKind.DENIED:
                self._connect()  # credentials may have been renewed
            message, hint = _ERRORS.get(kind, ("{url} failed for {key}: {reason}.", ""))
            text = message.format(url=self.url, key=key, reason=reason or "no usable answer")
            form = _CLASSES.get(kind, StoreError)
            raise form(text, url=self.url, key=key, next_step=hint) from error


def _count_bytes(chunks: Iterator[bytes], on_bytes: ByteCallback) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        on_bytes(len(chunk))
