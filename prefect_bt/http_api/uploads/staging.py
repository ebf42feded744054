"""Uploaded objects until a job takes them, in the state folder of the server.

    <state_dir>/api/key                         secret that signs credentials and URLs of files
    <state_dir>/api/uploads/<key id>-<nonce>/   an upload; the id of the key that asked for it
        workspace.tgz                           its object: complete, verified and synced
        <multipart id>/<number>-<sha256>        complete parts of an object
        <multipart id>.done                     those parts are in the object
        lock                                    flock of what completes or takes the object

A part or object that is still received has a name that begins with a dot.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from prefect_bt.errors import NotFoundError
from prefect_bt.file_server.signed_urls import compute_signature, is_signature_valid
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.replacement import open_replacement
from prefect_bt.filesystem.secret_file import ensure_secret
from prefect_bt.filesystem.trees import find_files, measure_folder, remove_tree
from prefect_bt.host.service import exclusive_lock
from prefect_bt.workspace.limits import MAX_WORKSPACE_BYTES, UNPACK_SLACK_BYTES, format_bytes

BUCKET: Final = "uploads"
OBJECT_NAME: Final = "workspace.tgz"
MAX_OPEN_UPLOADS: Final = 16
"""Uploads of one key that no job has taken."""
STALE_SECONDS: Final = 86400.0
"""Seconds without a change after which an upload that no job has taken is removed."""
_LIFETIME: Final = 3600
_IDLE_SECONDS: Final = 600.0
"""Seconds without a change after which an upload gives way to a new one of the same key."""
_MAX_PARTS: Final = 10_000
_MAX_MULTIPARTS: Final = 16
_OBJECT_KEY: Final = re.compile(rf"(([0-9a-z]+)-[0-9a-f]{{24}})/{re.escape(OBJECT_NAME)}")
_MULTIPART_ID: Final = re.compile(r"[0-9a-f]{16}")


class UploadError(Exception):
    """A refused request of S3's protocol: HTTP status, S3's code, and a message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Upload:
    """The folder of one upload. Methods raise UploadError, and OSError of the disk."""

    path: Path

    @property
    def object(self) -> Path:
        return self.path / OBJECT_NAME

    def lock(self) -> AbstractContextManager[None]:
        return exclusive_lock(self.path / "lock")

    def publish(self, file: Path) -> None:
        """Make the complete file the object."""
        with self.lock():
            file.replace(self.object)

    def begin_multipart(self) -> str:
        """Return the id of a new object in parts."""
        if len([one for one in self.path.iterdir() if one.is_dir()]) >= _MAX_MULTIPARTS:
            raise UploadError(409, "OperationAborted", "The upload was begun too often.")
        multipart_id = secrets.token_hex(8)
        (self.path / multipart_id).mkdir(0o700)
        return multipart_id

    def find_multipart(self, multipart_id: str) -> Path:
        """Return the folder of the parts."""
        folder = self.path / multipart_id
        if _MULTIPART_ID.fullmatch(multipart_id) and folder.is_dir():
            return folder
        raise UploadError(404, "NoSuchUpload", "The upload was completed or aborted.")

    def publish_part(self, multipart_id: str, number: int, file: Path, sha256: str) -> None:
        """Make the complete file the part; an earlier one with the number is removed."""
        with self.lock():
            folder = self.find_multipart(multipart_id)
            for earlier in find_paths(folder, f"{number}-*"):
                earlier.unlink()
            file.replace(folder / f"{number}-{sha256}")

    def complete(self, multipart_id: str, parts: Sequence[tuple[int, str]]) -> None:
        """Join the parts, as numbers and digests, to the object. A second call has no effect."""
        numbers = [number for number, _ in parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise UploadError(400, "InvalidPartOrder", "The parts are not in ascending order.")
        with self.lock():
            done = self.path / f"{multipart_id}.done"
            if _MULTIPART_ID.fullmatch(multipart_id) and done.exists():
                return
            folder = self.find_multipart(multipart_id)
            files = [folder / f"{number}-{digest}" for number, digest in parts]
            for number, file in zip(numbers, files, strict=True):
                if not file.exists():
                    message = f"Part {number} was not uploaded, or it was replaced by another."
                    raise UploadError(400, "InvalidPart", message)
            with open_replacement(self.object) as target:
                for file in files:
                    _append(file, target.fileno())
                os.fsync(target.fileno())
            done.touch()
            remove_tree(folder)

    def abort(self, multipart_id: str) -> None:
        """Delete the parts."""
        with self.lock():
            remove_tree(self.find_multipart(multipart_id))

    def count_bytes(self, *, without: str) -> int:
        """Return the bytes of complete files, without a part with that prefix of its name."""
        total = 0
        for file in find_files(self.path):
            if not file.name.startswith((".", without)):
                with suppress(FileNotFoundError):
                    total += file.lstat().st_size
        return total


class Uploads:
    """The uploads of one state folder; `max_bytes` bounds each."""

    def __init__(
        self,
        state_dir: Path,
        *,
        max_bytes: int = MAX_WORKSPACE_BYTES + UNPACK_SLACK_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api_folder = state_dir.expanduser().absolute() / "api"
        self._folder = self._api_folder / "uploads"
        self._max_bytes, self._clock = max_bytes, clock
        self._receiving = Counter[str]()
        """Id of an upload -> the bytes that requests may still write to it."""
        self._counting = threading.Lock()

    @cached_property
    def secret(self) -> bytes:
        """Return the secret by which the server signs credentials and URLs."""
        return ensure_secret(self._api_folder / "key")

    def issue(self, key_id: str) -> tuple[str, str]:
        """Return the id of a new upload of the key, and the token that allows it."""
        upload_id = f"{key_id}-{secrets.token_hex(12)}"
        expires = str(int(self._clock()) + _LIFETIME)
        signature = compute_signature(self.secret, _signed_text(upload_id), expires)
        return upload_id, f"{expires}.{signature}"

    def is_token_valid(self, upload_id: str, token: str) -> bool:
        """Return whether the token allows the upload now."""
        expires, _, signature = token.partition(".")
        text, now = _signed_text(upload_id), self._clock()
        return is_signature_valid(self.secret, text, expires=expires, signature=signature, now=now)

    def open(self, upload_id: str) -> Upload:
        """Return the upload, whose folder is made. UploadError for too many of one key."""
        upload = Upload(self._folder / upload_id)
        if not upload.path.is_dir():
            self._make_room(upload_id.partition("-")[0])
            ensure_private_folder(upload.path)
        return upload

    def find(self, upload_id: str) -> Upload:
        """Return the upload if it was begun."""
        upload = Upload(self._folder / upload_id)
        if upload.path.is_dir():
            return upload
        raise UploadError(404, "NoSuchUpload", "Nothing was uploaded yet.")

    def reserve(self, upload: Upload, size: int, *, part: int | None = None) -> None:
        """Allow `size` more bytes until `release`. UploadError if the upload becomes too large."""
        name = upload.path.name
        with self._counting:
            stored = upload.count_bytes(without=f"{part}-" if part else OBJECT_NAME)
            if stored + self._receiving[name] + size > self._max_bytes:
                limit = format_bytes(self._max_bytes)
                message = f"An upload has at most {limit}. Declare large files as weights."
                raise UploadError(413, "EntityTooLarge", message)
            self._receiving[name] += size

    def release(self, upload: Upload, size: int) -> None:
        """End a reservation, when the bytes are stored or refused."""
        with self._counting:
            self._receiving[upload.path.name] -= size
            self._receiving += Counter()  # drops what is zero

    @contextmanager
    def take(self, bucket: str, key: str, key_id: str) -> Generator[Path]:
        """Yield the object of a complete upload of the key; remove it if there is no error.

        NotFoundError for any other. Until then the same request can be repeated.
        """
        found = _OBJECT_KEY.fullmatch(key)
        missing = NotFoundError(
            "upload", f"{bucket}/{key}", next_step="Push the job again to upload its files anew."
        )
        if bucket != BUCKET or not found or found[2] != key_id:
            raise missing
        upload = Upload(self._folder / found[1])
        if not upload.object.exists():
            raise missing
        with upload.lock():
            if not upload.object.exists():
                remove_tree(upload.path)  # another request took it; the lock made the folder anew
                raise missing
            yield upload.object
            remove_tree(upload.path)

    def list_stale(self) -> Iterator[tuple[Path, int, float]]:
        """Yield folder, bytes and last change of the uploads that nobody continues."""
        for path in find_paths(self._folder, "*"):
            with suppress(FileNotFoundError):
                size, changed_at = measure_folder(path)
                if self._clock() - changed_at > STALE_SECONDS:
                    yield path, size, changed_at

    def remove_if_stale(self, path: Path) -> None:
        """Remove the upload with that folder, if nobody has continued it."""
        if any(path == stale for stale, _, _ in self.list_stale()):
            remove_tree(path)

    def remove_stale(self) -> None:
        """Remove the uploads that nobody continues."""
        for path, _, _ in self.list_stale():
            remove_tree(path)

    def _make_room(self, key_id: str) -> None:
        mine = find_paths(self._folder, f"{key_id}-*")
        if len(mine) < MAX_OPEN_UPLOADS:
            return
        changed_at, oldest = min((measure_folder(path)[1], path) for path in mine)
        if self._clock() - changed_at < _IDLE_SECONDS:
            message = f"The key has {len(mine)} uploads that no job has taken. Try again later."
            raise UploadError(503, "SlowDown", message)
        remove_tree(oldest)


def find_upload_id(bucket: str, key: str) -> str:
    """Return the id of the upload with that object; "" if no upload has such an object."""
    found = _OBJECT_KEY.fullmatch(key) if bucket == BUCKET else None
    return found[1] if found else ""


def parse_part_number(text: str) -> int:
    """Return the number of a part. UploadError."""
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= _MAX_PARTS:
        return int(text)
    message = f"A part number is between 1 and {_MAX_PARTS}."
    raise UploadError(400, "InvalidArgument", message)


def _signed_text(upload_id: str) -> str:
    return f"{BUCKET}/{upload_id}"


def _append(source: Path, target: int) -> None:
    with source.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left:
            copied = os.sendfile(target, file.fileno(), None, left)
            if not copied:
                raise OSError(f"{source} became shorter")
            left -= copied
