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

from prefect_bt.objects.protocols import Begun, Tick

PART: Final = 8 * 1024 * 1024
_MOST_PARTS: Final = 9_000
_IN_FLIGHT: Final = 3
_IN_MEMORY: Final = 8 * 1024 * 1024
_READ: Final = 1024 * 1024
_ARRIVALS: Final = 3
DAMAGED: Final = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"})
"""What a server answers to bytes that are not what their checksum says."""
_NO_LIST: Final = frozenset({"NoSuchUpload", "NotImplemented", "MethodNotAllowed"})


class Mismatch(Exception):
    """The source's bytes are not those announced."""


class Corrupted(Exception):
    """The store acknowledged other bytes than were sent."""


@dataclass(frozen=True)
class _Part:
    """What is to lie in a part, `start` and `length` in bytes of the file."""

    number: int
    start: int
    length: int


@dataclass(frozen=True)
class _There:
    """A part that the store has, as it tells."""

    size: int
    tag: str
    sha256: str


@dataclass(frozen=True)
class _Upload:
    """`checked`: the store verifies and remembers the SHA-256 of parts; else only MD5 tells."""

    id: str
    there: dict[int, _There]
    checked: bool = True

    def fits(self, part: int) -> bool:
        """Whether its parts are of this length."""
        return bool(self.there) and self.there.get(1, _There(part, "", "")).size == part


class Multipart:
    """The uploads of one bucket. `client`: boto3's for S3; `prefix` ends with / or is empty."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self.faults: Any = client.exceptions.ClientError
        self._changed, self._busy = threading.Condition(), set[str]()

    def upload(self, key: str, stream: BinaryIO, *, sha256: str, tick: Tick | None) -> str:
        """The file's bytes under `key`, visible when the last part is acknowledged; their digest.

        Parts of an earlier, unfinished upload of the same key count if they hold the same bytes.
        Raises Mismatch where the file's digest is not `sha256` (unless that is empty), Corrupted,
        botocore's errors, and OSError of the file.
        """
        with self._alone(key):
            size = stream.seek(0, io.SEEK_END)
            if tick is not None:
                tick(0)  # the caller may know that the file has grown since
            length = max(PART, -(-size // _MOST_PARTS))
            begun = self._begin(key, length if length < size else size)
            run = _Run(self, key, begun, tick or _unheard)
            try:
                parts, digest = run.send(stream, _cut(size, length), sha256=sha256)
            except (Mismatch, Corrupted):
                self._abort(key, begun.id)
                raise
            self._complete(key, begun.id, parts, size)
        return digest

    def abort(self, prefix: str) -> int:
        """Give up every unfinished upload below the folder `prefix`."""
        found = [(one["Key"], one["UploadId"]) for one in self._unfinished(f"{prefix}/")]
        for key, upload in found:
            self._abort(key.removeprefix(self._prefix), upload)
        return len(found)

    def unfinished(self, folder: str) -> Iterator[Begun]:
        """Every unfinished upload below `folder`."""
        for one in self._unfinished(f"{folder}/"):
            key, upload = one["Key"].removeprefix(self._prefix), str(one["UploadId"])
            parts = self._listed(key, upload)
            last = max([one["Initiated"], *(part["LastModified"] for part in parts)])
            size = sum(int(part["Size"]) for part in parts)
            yield Begun(key, upload, last.timestamp(), size)

    def give_up(self, one: Begun) -> None:
        self._abort(one.key, one.id)

    def presign(self, key: str, *, seconds: int) -> str:
        """An address that anyone may GET, also in ranges."""
        place = {"Bucket": self._bucket, "Key": f"{self._prefix}{key}"}
        signed = self._client.generate_presigned_url("get_object", Params=place, ExpiresIn=seconds)
        return str(signed)

    @contextmanager
    def _alone(self, key: str) -> Generator[None]:
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

    def _begin(self, key: str, part: int) -> _Upload:
        """An upload to go on with: the one with most parts of this length, else a new one."""
        best: _Upload | None = None
        for one in self._unfinished(key):
            if one["Key"] != f"{self._prefix}{key}":
                continue
            found = _Upload(str(one["UploadId"]), self._parts(key, one["UploadId"]))
            if not found.fits(part) or (best and len(best.there) >= len(found.there)):
                self._abort(key, found.id)
                continue
            if best:
                self._abort(key, best.id)
            best = found
        if best:
            return best
        made = self.call("create_multipart_upload", key, ChecksumAlgorithm="SHA256")
        return _Upload(str(made["UploadId"]), {}, checked="ChecksumAlgorithm" in made)

    def _unfinished(self, prefix: str) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}"
        )
        try:
            for page in pages:
                yield from page.get("Uploads", [])
        except self._client.exceptions.ClientError as error:
            # Servers that cannot list them, or say so where there are none.
            if error.response.get("Error", {}).get("Code") not in _NO_LIST:
                raise

    def _parts(self, key: str, upload: str) -> dict[int, _There]:
        found: dict[int, _There] = {}
        for part in self._listed(key, upload):
            tag = str(part["ETag"]).strip('"')
            checksum = str(part.get("ChecksumSHA256", ""))
            found[int(part["PartNumber"])] = _There(int(part["Size"]), tag, checksum)
        return found

    def _listed(self, key: str, upload: str) -> list[dict[str, Any]]:
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


class _Run:
    """One upload on its way: this thread reads and hashes the whole, a few others send parts."""

    def __init__(self, owner: Multipart, key: str, upload: _Upload, tick: Tick) -> None:
        self._owner, self._key, self._upload, self._tick = owner, key, upload, tick
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
                    raise Mismatch
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
            if self._upload.checked:
                digest = base64.b64encode(body.digest("sha256")).decode()
            there = self._upload.there.get(part.number)
            if there is None or not _same(there, part, body, digest):
                there = self._put_again(part, body, digest)
            self._tick(part.length)
            checksum = {"ChecksumSHA256": there.sha256} if there.sha256 else {}
            return {"PartNumber": part.number, "ETag": f'"{there.tag}"', **checksum}
        finally:
            self._room.release()

    def _put_again(self, part: _Part, body: _Body, digest: str) -> _There:
        """A part that did not arrive as it was is sent again."""
        for _ in range(_ARRIVALS - 1):
            try:
                return self._put(part, body, digest)
            except Corrupted:
                continue
            except self._owner.faults as error:
                if error.response.get("Error", {}).get("Code") not in DAMAGED:
                    raise
        return self._put(part, body, digest)

    def _put(self, part: _Part, body: _Body, digest: str) -> _There:
        answer = self._owner.call(
            "upload_part",
            self._key,
            UploadId=self._upload.id,
            PartNumber=part.number,
            Body=body.sent(),
            **({"ChecksumSHA256": digest} if digest else {}),
        )
        there = _There(
            part.length, str(answer["ETag"]).strip('"'), str(answer.get("ChecksumSHA256", ""))
        )
        encrypted = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
        if not encrypted and not _same(there, part, body, digest):
            raise Corrupted
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
            reader = self.sent()
            while chunk := reader.read(_READ):
                digest.update(chunk)
        return digest.digest()

    def sent(self) -> Any:
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


def _read(stream: BinaryIO, part: _Part, whole: Any) -> _Body:
    """Feeds the part to `whole`. Mismatch where the file has become shorter."""
    if part.length <= _IN_MEMORY:
        stream.seek(part.start)
        data = stream.read(part.length) or b""
        whole.update(data)
        if len(data) != part.length:
            raise Mismatch
        return _Body(stream, part, data)
    body, left = _Body(stream, part, None), part.length
    reader = body.sent()
    while chunk := reader.read(_READ):
        whole.update(chunk)
        left -= len(chunk)
    if left:
        raise Mismatch
    return body


def _same(there: _There, part: _Part, body: _Body, digest: str) -> bool:
    """Whether the store has the part's bytes, by what it tells: its SHA-256, else its MD5."""
    if there.size != part.length:
        return False
    if there.sha256 and digest:
        return there.sha256 == digest
    return there.tag == body.digest("md5").hex()


def _unheard(_: int) -> None:
    return None
