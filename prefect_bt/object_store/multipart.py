"""Resumable multipart uploads of large files to S3-like buckets; every part is verified.

boto3's plain calls let a later process list the stored parts, continue after them, and abort the
upload. boto3's transfer manager hashes on one thread and starts again after a kill.
"""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from prefect_bt.object_store.faults import FaultKind, classify_fault
from prefect_bt.object_store.protocols import ByteCallback, UnfinishedUpload

MIN_PART_BYTES: Final = 8 * 1024 * 1024
_MAX_PARTS: Final = 9_000
_MAX_SENDERS: Final = 3
_MAX_BYTES_IN_FLIGHT: Final = 64 * 1024 * 1024
"""Bytes of parts larger than usual, which files above 70 GB have, that are sent at a time."""
_MAX_SEND_ATTEMPTS: Final = 3
_LIST_UNSUPPORTED_CODES: Final = frozenset({"NoSuchUpload", "NotImplemented", "MethodNotAllowed"})


class DigestMismatch(Exception):
    """The file has other bytes than announced."""


class CorruptUpload(Exception):
    """The store acknowledged other bytes than were sent."""


@dataclass(frozen=True)
class _Part:
    """A part of the file, in bytes."""

    number: int
    start: int
    length: int


@dataclass(frozen=True)
class _StoredPart:
    """A part that the store has, by its own answer."""

    size: int
    etag: str
    sha256: str


@dataclass(frozen=True)
class _MultipartUpload:
    """`has_checksums`: the store verifies and keeps the SHA-256 of parts, not only their MD5."""

    id: str
    stored_parts: dict[int, _StoredPart]
    has_checksums: bool = True

    def has_part_size(self, part: int) -> bool:
        """Return whether it has parts, and they have this length."""
        first = self.stored_parts.get(1)
        return bool(self.stored_parts) and (first is None or first.size == part)


class MultipartUploader:
    """The uploads to one bucket. `client` is boto3's; `prefix` ends with / or is empty."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self.client_error: Any = client.exceptions.ClientError
        self._changed, self._busy = threading.Condition(), set[str]()

    def upload(
        self, key: str, stream: BinaryIO, *, sha256: str, on_bytes: ByteCallback | None
    ) -> str:
        """Upload a file. Return its digest; the object appears with the last part.

        Parts of an earlier, unfinished upload of the same key are kept if they have the same bytes.
        DigestMismatch if the file's digest is not `sha256` (unless that is empty), CorruptUpload,
        botocore's errors, and OSError of the file.
        """
        with self._lock_key(key):
            size = stream.seek(0, io.SEEK_END)
            if on_bytes is not None:
                on_bytes(0)  # raises if the caller sees that the file has grown since
            length = max(MIN_PART_BYTES, -(-size // _MAX_PARTS))
            begun = self._begin(key, length if length < size else size)
            sender = _PartSender(self, key, begun, on_bytes or _ignore_bytes, length)
            try:
                parts, digest = sender.send(stream, _cut(size, length), sha256=sha256)
            except (DigestMismatch, CorruptUpload):
                self._abort(key, begun.id)
                raise
            self._complete(key, begun.id, parts, size)
        return digest

    def abort_uploads(self, prefix: str) -> int:
        """Abort every unfinished upload below the folder `prefix`. Return their number."""
        found = [(one["Key"], one["UploadId"]) for one in self._iter_uploads(f"{prefix}/")]
        for key, upload in found:
            self._abort(key.removeprefix(self._prefix), upload)
        return len(found)

    def list_unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        """Yield every unfinished upload below `folder`."""
        for one in self._iter_uploads(f"{folder}/"):
            key, upload = one["Key"].removeprefix(self._prefix), str(one["UploadId"])
            parts = self._list_parts(key, upload)
            last = max([one["Initiated"], *(part["LastModified"] for part in parts)])
            size = sum(int(part["Size"]) for part in parts)
            yield UnfinishedUpload(key, upload, last.timestamp(), size)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._abort(upload.key, upload.id)

    @contextmanager
    def _lock_key(self, key: str) -> Generator[None]:
        """Allow one thread per key: a running upload of another must not be continued."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._busy)
            self._busy.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(key)
                self._changed.notify_all()

    def call(self, operation: str, key: str, **arguments: Any) -> Any:
        return getattr(self._client, operation)(
            Bucket=self._bucket, Key=f"{self._prefix}{key}", **arguments
        )

    def _begin(self, key: str, part: int) -> _MultipartUpload:
        """Return the upload with most parts of this length, or a new one. Abort the others."""
        best: _MultipartUpload | None = None
        for one in self._iter_uploads(key):
            if one["Key"] != f"{self._prefix}{key}":
                continue
            found = _MultipartUpload(str(one["UploadId"]), self._parts(key, one["UploadId"]))
            if not found.has_part_size(part) or (
                best and len(best.stored_parts) >= len(found.stored_parts)
            ):
                self._abort(key, found.id)
                continue
            if best:
                self._abort(key, best.id)
            best = found
        if best:
            return best
        made = self.call("create_multipart_upload", key, ChecksumAlgorithm="SHA256")
        return _MultipartUpload(
            str(made["UploadId"]), {}, has_checksums="ChecksumAlgorithm" in made
        )

    def _iter_uploads(self, prefix: str) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}"
        )
        try:
            for page in pages:
                yield from page.get("Uploads", [])
        except self._client.exceptions.ClientError as error:
            # Some servers cannot list uploads, some answer so when there are none.
            if error.response.get("Error", {}).get("Code") not in _LIST_UNSUPPORTED_CODES:
                raise

    def _parts(self, key: str, upload: str) -> dict[int, _StoredPart]:
        found: dict[int, _StoredPart] = {}
        for part in self._list_parts(key, upload):
            tag = str(part["ETag"]).strip('"')
            checksum = str(part.get("ChecksumSHA256", ""))
            found[int(part["PartNumber"])] = _StoredPart(int(part["Size"]), tag, checksum)
        return found

    def _list_parts(self, key: str, upload: str) -> list[dict[str, Any]]:
        """Return the server's list of parts; empty for an upload that does not exist any more."""
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=f"{self._prefix}{key}", UploadId=upload
        )
        try:
            return [part for page in pages for part in page.get("Parts", [])]
        except self._client.exceptions.NoSuchUpload:
            return []

    def _complete(self, key: str, upload: str, parts: list[dict[str, Any]], size: int) -> None:
        try:
            listed = {"Parts": parts}
            self.call("complete_multipart_upload", key, UploadId=upload, MultipartUpload=listed)
        except self._client.exceptions.NoSuchUpload:
            # A retry after a lost answer: the upload may be complete.
            if self.call("head_object", key)["ContentLength"] != size:
                raise

    def _abort(self, key: str, upload: str) -> None:
        try:
            self.call("abort_multipart_upload", key, UploadId=upload)
        except self._client.exceptions.NoSuchUpload:
            return


class _PartSender:
    """One running upload: this thread reads and hashes the file, a few others send parts."""

    def __init__(
        self,
        owner: MultipartUploader,
        key: str,
        upload: _MultipartUpload,
        on_bytes: ByteCallback,
        part_bytes: int,
    ) -> None:
        self._owner, self._key, self._upload, self._on_bytes = owner, key, upload, on_bytes
        self._senders = max(1, min(_MAX_SENDERS, _MAX_BYTES_IN_FLIGHT // part_bytes))
        self._free_senders = threading.Semaphore(self._senders)

    def send(
        self, stream: BinaryIO, parts: Iterator[_Part], *, sha256: str
    ) -> tuple[list[dict[str, Any]], str]:
        whole, sent = hashlib.sha256(), list[Future[dict[str, Any]]]()
        with ThreadPoolExecutor(self._senders, thread_name_prefix="part") as pool:
            try:
                for part in parts:
                    self._free_senders.acquire()
                    data = _read(stream, part)
                    whole.update(data)
                    sent.append(pool.submit(self._send, part, data))
                    self._raise_failed(sent)
                if sha256 not in {"", whole.hexdigest()}:
                    raise DigestMismatch
                return [one.result() for one in sent], whole.hexdigest()
            finally:
                for one in sent:
                    one.cancel()

    def _raise_failed(self, sent: list[Future[dict[str, Any]]]) -> None:
        for one in sent[-2 * self._senders :]:
            if one.done():
                one.result()

    def _send(self, part: _Part, data: bytes) -> dict[str, Any]:
        try:
            digest = ""
            if self._upload.has_checksums:
                digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
            stored = self._upload.stored_parts.get(part.number)
            if stored is None or not _is_intact(stored, data, digest):
                stored = self._put_with_retries(part, data, digest)
            self._on_bytes(part.length)
            checksum = {"ChecksumSHA256": stored.sha256} if stored.sha256 else {}
            return {"PartNumber": part.number, "ETag": f'"{stored.etag}"', **checksum}
        finally:
            self._free_senders.release()

    def _put_with_retries(self, part: _Part, data: bytes, digest: str) -> _StoredPart:
        """Send a part, and again if other bytes arrived."""
        for _ in range(_MAX_SEND_ATTEMPTS - 1):
            try:
                return self._put(part, data, digest)
            except CorruptUpload:
                continue
            except self._owner.client_error as error:
                if classify_fault(error).kind is not FaultKind.CHECKSUM:
                    raise
        return self._put(part, data, digest)

    def _put(self, part: _Part, data: bytes, digest: str) -> _StoredPart:
        answer = self._owner.call(
            "upload_part",
            self._key,
            UploadId=self._upload.id,
            PartNumber=part.number,
            Body=data,
            **({"ChecksumSHA256": digest} if digest else {}),
        )
        etag, checksum = str(answer["ETag"]).strip('"'), str(answer.get("ChecksumSHA256", ""))
        stored = _StoredPart(part.length, etag, checksum)
        encrypted = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
        if not encrypted and not _is_intact(stored, data, digest):
            raise CorruptUpload
        return stored


def _cut(size: int, length: int) -> Iterator[_Part]:
    for number, start in enumerate(range(0, size, length), start=1):
        yield _Part(number, start, min(length, size - start))


def _read(stream: BinaryIO, part: _Part) -> bytes:
    """Read a part. DigestMismatch if the file has become shorter."""
    stream.seek(part.start)
    data = stream.read(part.length)
    if len(data) != part.length:
        raise DigestMismatch
    return data


def _is_intact(stored: _StoredPart, data: bytes, digest: str) -> bool:
    """Return whether the store has the part's bytes, by their SHA-256, else by their MD5."""
    if stored.size != len(data):
        return False
    if stored.sha256 and digest:
        return stored.sha256 == digest
    return stored.etag == hashlib.md5(data, usedforsecurity=False).hexdigest()


def _ignore_bytes(_: int) -> None:
    return None
