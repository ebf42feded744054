"""Resumable multipart uploads of large files to S3-like buckets; every part is verified.

boto3's plain calls let a later process list the stored parts, continue after them, and abort the
upload. boto3's transfer manager hashes on one thread and starts again after a kill.
"""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, BinaryIO, Final, NamedTuple

from botocore.exceptions import ClientError  # pyright: ignore[reportMissingTypeStubs]

from prefect_bt.filesystem.rehash import ByteCallback
from prefect_bt.object_store.connect import BucketUrl, Limits, create_s3_client
from prefect_bt.object_store.faults import FaultKind, classify_fault
from prefect_bt.object_store.protocols import ObjectInfo

MIN_PART_BYTES: Final = 8 * 1024 * 1024
MAX_SEND_ATTEMPTS: Final = 3
"""Attempts to send bytes if the server receives others."""
_MAX_PARTS: Final = 9_000
_MAX_SENDERS: Final = 3
_MAX_BYTES_IN_FLIGHT: Final = 64 * 1024 * 1024
"""Bytes of parts larger than usual, which files above 70 GB have, that are sent at a time."""
_NO_UPLOAD: Final = "NoSuchUpload"
_UNLISTED_CODES: Final = frozenset({_NO_UPLOAD, "NotImplemented", "MethodNotAllowed"})
_Answer = dict[str, Any]


class DigestMismatch(Exception):
    """The file has other bytes than announced."""


class CorruptUpload(Exception):
    """The store acknowledged other bytes than were sent."""


class _Upload(NamedTuple):
    """`has_checksums`: the store verifies and keeps the SHA-256 of parts, not only their MD5."""

    key: str
    id: str
    stored_parts: dict[int, _Answer]
    """Number -> `Size`, `ETag` and perhaps `ChecksumSHA256`, by the store's answer."""
    has_checksums: bool = True


class MultipartUploader:
    """The uploads to one bucket."""

    def __init__(self, address: BucketUrl, limits: Limits) -> None:
        self._address, self._limits = address, limits
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._locks = dict[str, threading.Lock]()
        """One thread per key: it must not continue a running upload of another."""

    @cached_property
    def _client(self) -> Any:
        return create_s3_client(self._address, self._limits)  # slow

    def upload(self, key: str, stream: BinaryIO, *, sha256: str, on_bytes: ByteCallback) -> str:
        """Upload a file. Return its digest; the object appears with the last part.

        Parts of an earlier, unfinished upload of the same key are kept if they have the same bytes.
        DigestMismatch as `read_parts`, CorruptUpload, botocore's errors, and OSError of the file.
        """
        with self._locks.setdefault(key, threading.Lock()):
            size = stream.seek(0, io.SEEK_END)
            on_bytes(0)  # raises if the caller sees that the file has grown since
            length, senders = plan_parts(size)
            upload, digest = self._begin(key, min(length, size)), hashlib.sha256()
            data = read_parts(stream, size, length, digest, sha256)
            try:
                parts = self._send_parts(upload, data, senders, on_bytes)
            except (DigestMismatch, CorruptUpload):
                self.abort(key, upload.id)
                raise
            self._complete(upload, parts, size)
        return digest.hexdigest()

    def list_unfinished_uploads(self, folder: str) -> Iterator[ObjectInfo]:
        for one in self._list_uploads(f"{folder}/"):
            key, id = one["Key"].removeprefix(self._prefix), one["UploadId"]
            parts = self._list_parts(key, id).values()
            last = max([one["Initiated"], *(part["LastModified"] for part in parts)])
            yield ObjectInfo(key, sum(part["Size"] for part in parts), last.timestamp(), id)

    def abort(self, key: str, upload: str) -> None:
        """Abort an upload, if it still exists."""
        try:
            self._call("abort_multipart_upload", key, UploadId=upload)
        except ClientError as error:
            if classify_fault(error).reason != _NO_UPLOAD:
                raise

    def _call(self, operation: str, key: str, **arguments: Any) -> Any:
        return getattr(self._client, operation)(
            Bucket=self._address.bucket, Key=f"{self._prefix}{key}", **arguments
        )

    def _begin(self, key: str, part_bytes: int) -> _Upload:
        """Return the upload with most parts of this length, else a new one. Abort the others."""
        uploads = [
            _Upload(key, one["UploadId"], self._list_parts(key, one["UploadId"]))
            for one in self._list_uploads(key)
            if one["Key"] == f"{self._prefix}{key}"
        ]
        usable = [one for one in uploads if one.stored_parts.get(1, {}).get("Size") == part_bytes]
        best = max(usable, key=lambda one: len(one.stored_parts), default=None)
        for one in uploads:
            if one is not best:
                self.abort(key, one.id)
        if best:
            return best
        made = self._call("create_multipart_upload", key, ChecksumAlgorithm="SHA256")
        return _Upload(key, made["UploadId"], {}, has_checksums="ChecksumAlgorithm" in made)

    def _list_uploads(self, prefix: str) -> list[_Answer]:
        return self._list("list_multipart_uploads", "Uploads", Prefix=f"{self._prefix}{prefix}")

    def _list_parts(self, key: str, upload: str) -> dict[int, _Answer]:
        found = self._list("list_parts", "Parts", Key=f"{self._prefix}{key}", UploadId=upload)
        return {part["PartNumber"]: part for part in found}

    def _list(self, operation: str, field: str, **arguments: Any) -> list[_Answer]:
        """Return the entries of all pages; none for an upload that does not exist any more."""
        paginator = self._client.get_paginator(operation)
        try:
            pages = paginator.paginate(Bucket=self._address.bucket, **arguments)
            return pages.build_full_result().get(field, [])
        except ClientError as error:
            # Some servers cannot list uploads, some answer so when there are none.
            if classify_fault(error).reason not in _UNLISTED_CODES:
                raise
            return []

    def _send_parts(
        self, upload: _Upload, parts: Iterator[bytes], senders: int, on_bytes: ByteCallback
    ) -> list[_Answer]:
        """Send parts in a few threads. Return their descriptions for `_complete`."""
        done, sent = list[_Answer](), deque[Future[_Answer]]()
        with ThreadPoolExecutor(senders, thread_name_prefix="part") as pool:
            try:
                for number, data in enumerate(parts, 1):
                    sent.append(pool.submit(self._send, upload, number, data, on_bytes))
                    if len(sent) == senders:
                        done.append(sent.popleft().result())
                return done + [one.result() for one in sent]
            finally:
                for one in sent:
                    one.cancel()

    def _send(self, upload: _Upload, number: int, data: bytes, on_bytes: ByteCallback) -> _Answer:
        """Send a part unless the store has it. Return its description for `_complete`."""
        digest = ""
        if upload.has_checksums:
            digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        stored = upload.stored_parts.get(number)
        if stored is None or not _is_intact(stored, data, digest):
            stored = self._put(upload, number, data, digest)
        on_bytes(len(data))
        names = ("ETag", "ChecksumSHA256")
        return {"PartNumber": number, **{name: stored[name] for name in names if name in stored}}

    def _put(self, upload: _Upload, number: int, data: bytes, digest: str) -> _Answer:
        """Send a part, and again if other bytes arrived."""
        given: _Answer = {"UploadId": upload.id, "PartNumber": number, "Body": data}
        if digest:
            given["ChecksumSHA256"] = digest
        for _ in range(MAX_SEND_ATTEMPTS):
            try:
                stored = self._call("upload_part", upload.key, **given)
            except ClientError as error:
                if classify_fault(error).kind is not FaultKind.CHECKSUM:
                    raise
                continue
            encrypted = str(stored.get("ServerSideEncryption", "")).startswith("aws:kms")
            if encrypted or _is_intact(stored, data, digest):
                return stored
        raise CorruptUpload

    def _complete(self, upload: _Upload, parts: list[_Answer], size: int) -> None:
        try:
            given = {"UploadId": upload.id, "MultipartUpload": {"Parts": parts}}
            self._call("complete_multipart_upload", upload.key, **given)
        except ClientError as error:
            # A retry after a lost answer: the upload may be complete.
            if classify_fault(error).reason != _NO_UPLOAD:
                raise
            if self._call("head_object", upload.key)["ContentLength"] != size:
                raise


def plan_parts(size: int) -> tuple[int, int]:
    """Return the bytes of a file's parts, and the number of parts to send at a time."""
    length = max(MIN_PART_BYTES, -(-size // _MAX_PARTS))
    return length, max(1, min(_MAX_SENDERS, _MAX_BYTES_IN_FLIGHT // length))


def read_parts(
    stream: BinaryIO, size: int, part_bytes: int, digest: Any, sha256: str
) -> Iterator[bytes]:
    """Yield a file in parts and update `digest`, a hash of hashlib.

    DigestMismatch for a file that is shorter than `size`, and at the end if it has another digest
    than `sha256` (unless that is empty).
    """
    stream.seek(0)
    for start in range(0, size, part_bytes):
        expected = min(part_bytes, size - start)
        data = stream.read(expected)
        if len(data) < expected:
            raise DigestMismatch
        digest.update(data)
        yield data
    if sha256 not in {"", digest.hexdigest()}:
        raise DigestMismatch


def _is_intact(stored: _Answer, data: bytes, digest: str) -> bool:
    """Return whether the store has the part's bytes, by their SHA-256, else by their MD5."""
    checksum = stored.get("ChecksumSHA256")
    if checksum and digest:
        return checksum == digest
    return stored["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()
