"""Large files into an S3-like bucket in parts: resumed where they were, verified one by one.

boto3's plain calls, because they let a later process list the parts that are there, go on after
them, and give up what will not be finished; no other library that we know offers all three. Its own
transfer manager is not used: it hashes on one thread and starts over after a kill.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
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
_IN_FLIGHT: Final = 3
_IN_MEMORY: Final = 8 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_MAX_SEND_ATTEMPTS: Final = 3
_LIST_UNSUPPORTED_CODES: Final = frozenset({"NoSuchUpload", "NotImplemented", "MethodNotAllowed"})


class DigestMismatch(Exception):
    """The source's bytes are not those announced."""


class CorruptUpload(Exception):
    """The store acknowledged other bytes than were sent."""


@dataclass(frozen=True)
class _Part:
    """What is to lie in a part, `start` and `length` in bytes of the file."""

    number: int
    start: int
    length: int


@dataclass(frozen=True)
class _StoredPart:
    """A part that the store has, as it tells."""

    size: int
    etag: str
    sha256: str


@dataclass(frozen=True)
class _MultipartUpload:
    """`has_checksums`: the store verifies and keeps the SHA-256 of parts; else only MD5 tells."""

    id: str
    stored_parts: dict[int, _StoredPart]
    has_checksums: bool = True

    def has_part_size(self, part: int) -> bool:
        """Whether its parts are of this length."""
        return (
            bool(self.stored_parts)
            and self.stored_parts.get(1, _StoredPart(part, "", "")).size == part
        )


class MultipartUploader:
    """The uploads of one bucket. `client`: boto3's for S3; `prefix` ends with / or is empty."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self.client_error: Any = client.exceptions.ClientError
        self._changed, self._busy = threading.Condition(), set[str]()

    def upload(
        self, key: str, stream: BinaryIO, *, sha256: str, on_bytes: ByteCallback | None
    ) -> str:
        """The file's bytes under `key`, visible when the last part is acknowledged; their digest.

        Parts of an earlier, unfinished upload of the same key count if they hold the same bytes.
        Raises Mismatch where the file's digest is not `sha256` (unless that is empty), Corrupted,
        botocore's errors, and OSError of the file.
        """
        with self._lock_key(key):
            size = stream.seek(0, io.SEEK_END)
            if on_bytes is not None:
                on_bytes(0)  # the caller may know that the file has grown since
            length = max(MIN_PART_BYTES, -(-size // _MAX_PARTS))
            begun = self._begin(key, length if length < size else size)
            run = _PartSender(self, key, begun, on_bytes or _ignore_bytes)
            try:
                parts, digest = run.send(stream, _cut(size, length), sha256=sha256)
            except (DigestMismatch, CorruptUpload):
                self._abort(key, begun.id)
                raise
            self._complete(key, begun.id, parts, size)
        return digest

    def abort_uploads(self, prefix: str) -> int:
        """Give up every unfinished upload below the folder `prefix`."""
        found = [(one["Key"], one["UploadId"]) for one in self._iter_uploads(f"{prefix}/")]
        for key, upload in found:
            self._abort(key.removeprefix(self._prefix), upload)
        return len(found)

    def list_unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        """Every unfinished upload below `folder`."""
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
        """One thread a key: what another is sending is no unfinished upload to go on with."""
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
        """An upload to go on with: the one with most parts of this length, else a new one."""
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
            # Servers that cannot list them, or say so where there are none.
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
        """The parts as the server tells them; none of an upload that is gone."""
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=f"{self._prefix}{key}", UploadId=upload
        )
        try:
            return [part for page in pages for part in page.get("Parts", [])]
        except self._client.exceptions.NoSuchUpload:
            return []

    def _complete(self, key: str, upload: str, parts: list[dict[str, Any]], size: int) -> None:
        try:
            self.call(
                "complete_multipart_upload",
                key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except self._client.exceptions.NoSuchUpload:
            # Done already, if only the answer was lost.
            if self.call("head_object", key)["ContentLength"] != size:
                raise

    def _abort(self, key: str, upload: str) -> None:
        try:
            self.call("abort_multipart_upload", key, UploadId=upload)
        except self._client.exceptions.NoSuchUpload:
            return


class _PartSender:
    """One upload on its way: this thread reads and hashes the whole, a few others send parts."""

    def __init__(
        self, owner: MultipartUploader, key: str, upload: _MultipartUpload, on_bytes: ByteCallback
    ) -> None:
        self._owner, self._key, self._upload, self._tick = owner, key, upload, on_bytes
        self._room = threading.Semaphore(_IN_FLIGHT)

    def send(
        self, stream: BinaryIO, parts: Iterator[_Part], *, sha256: str
    ) -> tuple[list[dict[str, Any]], str]:
        whole, sent = hashlib.sha256(), list[Future[dict[str, Any]]]()
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="part") as pool:
            try:
                for part in parts:
                    self._room.acquire()
                    body = _read(stream, part, whole)
                    sent.append(pool.submit(self._send, part, body))
                    self._raise_failed(sent)
                if sha256 not in {"", whole.hexdigest()}:
                    raise DigestMismatch
                return [one.result() for one in sent], whole.hexdigest()
            finally:
                for one in sent:
                    one.cancel()

    def _raise_failed(self, sent: list[Future[dict[str, Any]]]) -> None:
        for one in sent[-2 * _IN_FLIGHT :]:
            if one.done():
                one.result()

    def _send(self, part: _Part, body: _Body) -> dict[str, Any]:
        try:
            digest = ""
            if self._upload.has_checksums:
                digest = base64.b64encode(body.digest("sha256")).decode()
            there = self._upload.stored_parts.get(part.number)
            if there is None or not _is_intact(there, part, body, digest):
                there = self._put_with_retries(part, body, digest)
            self._tick(part.length)
            checksum = {"ChecksumSHA256": there.sha256} if there.sha256 else {}
            return {"PartNumber": part.number, "ETag": f'"{there.etag}"', **checksum}
        finally:
            self._room.release()

    def _put_with_retries(self, part: _Part, body: _Body, digest: str) -> _StoredPart:
        """A part that did not arrive as it was is sent again."""
        for _ in range(_MAX_SEND_ATTEMPTS - 1):
            try:
                return self._put(part, body, digest)
            except CorruptUpload:
                continue
            except self._owner.client_error as error:
                if classify_fault(error).kind is not FaultKind.CHECKSUM:
                    raise
        return self._put(part, body, digest)

    def _put(self, part: _Part, body: _Body, digest: str) -> _StoredPart:
        answer = self._owner.call(
            "upload_part",
            self._key,
            UploadId=self._upload.id,
            PartNumber=part.number,
            Body=body.open_payload(),
            **({"ChecksumSHA256": digest} if digest else {}),
        )
        there = _StoredPart(
            part.length, str(answer["ETag"]).strip('"'), str(answer.get("ChecksumSHA256", ""))
        )
        encrypted = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
        if not encrypted and not _is_intact(there, part, body, digest):
            raise CorruptUpload
        return there


class _Body:
    """A part's bytes: in memory, or left in the file where they would take too much of it."""

    def __init__(self, stream: BinaryIO, part: _Part, data: bytes | None) -> None:
        self._stream, self._part, self._data = stream, part, data

    def digest(self, kind: str) -> bytes:
        digest = hashlib.new(kind, usedforsecurity=False)
        if self._data is not None:
            digest.update(self._data)
        else:
            reader = self.open_payload()
            while chunk := reader.read(_READ_BYTES):
                digest.update(chunk)
        return digest.digest()

    def open_payload(self) -> Any:
        return self._data if self._data is not None else _Slice(self._stream, self._part)


class _Slice(io.RawIOBase):
    """A part of a file as a file; several may be read at a time."""

    def __init__(self, stream: BinaryIO, part: _Part) -> None:
        super().__init__()
        self._fd, self._start, self._length, self._at = stream.fileno(), part.start, part.length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1, /) -> bytes:
        left = self._length - self._at
        data = os.pread(self._fd, left if size < 0 else min(size, left), self._start + self._at)
        self._at += len(data)
        return data


def _cut(size: int, length: int) -> Iterator[_Part]:
    for number, start in enumerate(range(0, size, length), start=1):
        yield _Part(number, start, min(length, size - start))


def _read(stream: BinaryIO, part: _Part, exact: Any) -> _Body:
    """Feeds the part to `exact`. Mismatch where the file has become shorter."""
    if part.length <= _IN_MEMORY:
        stream.seek(part.start)
        data = stream.read(part.length) or b""
        exact.update(data)
        if len(data) != part.length:
            raise DigestMismatch
        return _Body(stream, part, data)
    body, left = _Body(stream, part, None), part.length
    reader = body.open_payload()
    while chunk := reader.read(_READ_BYTES):
        exact.update(chunk)
        left -= len(chunk)
    if left:
        raise DigestMismatch
    return body


def _is_intact(stored: _StoredPart, part: _Part, body: _Body, digest: str) -> bool:
    """Whether the store has the part's bytes, by what it tells: its SHA-256, else its MD5."""
    if stored.size != part.length:
        return False
    if stored.sha256 and digest:
        return stored.sha256 == digest
    return stored.etag == body.digest("md5").hex()


def _ignore_bytes(_: int) -> None:
    return None
