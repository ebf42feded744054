"""Uploaded objects until a job takes them, in the state folder of the server.

<state_dir>/api/key                         secret that signs credentials and URLs of files
<state_dir>/api/uploads/<key id>-<nonce>/   an upload; the id of the key that asked for it
    workspace.tgz                           its object: complete, verified and synced
    <number>-<sha256>                       complete parts of the object
    .<nonce>.tmp                            what is still received, of the announced size
    lock                                    flock of what changes or takes the object
"""

from __future__ import annotations

import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from prefect_bt.errors import NotFoundError, StoreError
from prefect_bt.file_server.signed_urls import compute_signature, is_signature_valid
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.replacement import open_replacement
from prefect_bt.filesystem.secret_file import ensure_secret
from prefect_bt.filesystem.trees import measure_folder, remove_tree
from prefect_bt.host.service import exclusive_lock
from prefect_bt.http_api.uploads.bucket_uploads import BucketUploads
from prefect_bt.workspace.limits import MAX_WORKSPACE_BYTES, UNPACK_SLACK_BYTES, format_bytes

BUCKET: Final = "uploads"
OBJECT_NAME: Final = "workspace.tgz"
MAX_OPEN_UPLOADS: Final = 16
"""Uploads of one key that no job has taken."""
STALE_SECONDS: Final = 86400.0
"""Seconds without a change after which an upload that no job has taken is removed."""
_IDLE_SECONDS: Final = 600.0
"""Seconds without a change after which an upload gives way to a new one of the same key.

One that a refused job named does at once."""
_CREDENTIAL_SECONDS: Final = 3600
_OBJECT_KEY: Final = re.compile(rf"(([0-9a-z]+)-[0-9a-f]{{24}})/{re.escape(OBJECT_NAME)}")
_PARTS: Final = "[1-9]*-*"


class UploadError(Exception):
    """A refused request of S3's protocol: HTTP status, S3's code, and a message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Uploads:
    """The uploads of one state folder; `max_bytes` bounds each. OSError of the disk."""

    def __init__(
        self,
        state_dir: Path,
        *,
        max_bytes: int = MAX_WORKSPACE_BYTES + UNPACK_SLACK_BYTES,
        clock: Callable[[], float] = time.time,
        bucket: BucketUploads | None = None,
    ) -> None:
        self.bucket = bucket
        """Where clients upload directly to the store."""
        self._api_folder = state_dir.expanduser().absolute() / "api"
        self._folder = self._api_folder / "uploads"
        self._max_bytes, self._clock = max_bytes, clock

    @cached_property
    def secret(self) -> bytes:
        """Return the secret by which the server signs credentials and URLs."""
        return ensure_secret(self._api_folder / "key")

    def issue(self, key_id: str) -> tuple[str, str]:
        """Return the id of a new upload of the key, and the token that allows it."""
        upload_id = f"{key_id}-{secrets.token_hex(12)}"
        expires = str(int(self._clock()) + _CREDENTIAL_SECONDS)
        signature = compute_signature(self.secret, f"{BUCKET}/{upload_id}", expires)
        return upload_id, f"{expires}.{signature}"

    def is_token_valid(self, upload_id: str, token: str) -> bool:
        """Return whether the token allows the upload now."""
        expires, _, signature = token.partition(".")
        key, now = f"{BUCKET}/{upload_id}", self._clock()
        return is_signature_valid(self.secret, key, expires=expires, signature=signature, now=now)

    def open(self, upload_id: str) -> Path:
        """Return the folder of the upload, which is made. UploadError for too many of one key."""
        folder = self._folder / upload_id
        if not folder.is_dir():
            self._make_room(upload_id.partition("-")[0])
            ensure_private_folder(folder)
        return folder

    def find(self, upload_id: str) -> Path:
        """Return the folder of an upload that was begun. UploadError."""
        folder = self._folder / upload_id
        if folder.is_dir():
            return folder
        raise UploadError(404, "NoSuchUpload", "The upload was not begun, or it was aborted.")

    def create_file(self, folder: Path, size: int) -> Path:
        """Create a file in the upload for that many bytes. UploadError if it has too many then."""
        with exclusive_lock(folder / "lock"):
            if size + _count_bytes(folder) > self._max_bytes:
                limit = format_bytes(self._max_bytes)
                message = f"An upload has at most {limit}. Declare large files as weights."
                raise UploadError(413, "EntityTooLarge", message)
            path = folder / f".{uuid.uuid4().hex}.tmp"
            path.touch()
            os.truncate(path, size)
        return path

    @contextmanager
    def take(self, bucket: str, key: str, key_id: str) -> Generator[Path]:
        """Yield the object of a complete upload of the key; remove it if there is no error.

        NotFoundError for any other. Until then the same request can be repeated.
        """
        remote = self.bucket if self.bucket and bucket == self.bucket.name else None
        name = key.removeprefix(remote.prefix) if remote else key
        found, step = _OBJECT_KEY.fullmatch(name), "Push the job again to upload its files anew."
        missing = NotFoundError("upload", f"{bucket}/{key}", next_step=step)
        if not (remote or bucket == BUCKET) or not found or found[2] != key_id:
            raise missing
        folder = self._folder / found[1]
        if not (remote or folder.is_dir()):
            raise missing
        with exclusive_lock(folder / "lock"):
            if remote:
                remote.download(name, folder / OBJECT_NAME, max_bytes=self._max_bytes)
            if not (folder / OBJECT_NAME).exists():
                if remote:
                    remove_tree(folder)
                raise missing
            yield folder / OBJECT_NAME
            if remote:
                with suppress(StoreError):  # its job has started; gc removes what is left
                    remote.delete(name)
            remove_tree(folder)

    def give_up(self, key: str, key_id: str) -> None:
        """Let an upload of the key give way to a new one: the job that named it was refused."""
        name = key.removeprefix(self.bucket.prefix) if self.bucket else key
        match, past = _OBJECT_KEY.fullmatch(name), self._clock() - _IDLE_SECONDS - 1
        if match and match[2] == key_id:
            folder = self._folder / match[1]
            for path in (*find_paths(folder, "*"), folder):
                with suppress(FileNotFoundError):
                    os.utime(path, (past, past))

    def list_stale(self) -> Iterator[tuple[Path, int, float]]:
        """Yield folder, bytes and last change of the uploads that nobody continues."""
        for path in find_paths(self._folder, "*"):
            with suppress(FileNotFoundError):
                size, changed_at = measure_folder(path)
                if self._clock() - changed_at > STALE_SECONDS:
                    yield path, size, changed_at

    def remove_stale(self, folder: Path | None = None) -> None:
        """Remove the uploads that nobody continues; with `folder`, only that one."""
        for path, _, _ in self.list_stale():
            if folder in (None, path):
                remove_tree(path)

    def _make_room(self, key_id: str) -> None:
        mine = find_paths(self._folder, f"{key_id}-*")
        if len(mine) < MAX_OPEN_UPLOADS:
            return
        ages = list[tuple[float, Path]]()
        for path in mine:
            with suppress(FileNotFoundError):  # a job has taken it
                ages.append((measure_folder(path)[1], path))
        if len(ages) < MAX_OPEN_UPLOADS:
            return
        changed_at, oldest = min(ages)
        if self._clock() - changed_at < _IDLE_SECONDS:
            message = f"The key has {len(ages)} uploads that no job has taken. Try again later."
            raise UploadError(503, "SlowDown", message)
        remove_tree(oldest)


def find_upload_id(bucket: str, key: str) -> str:
    """Return the id of the upload with that object; "" if no upload has such an object."""
    found = _OBJECT_KEY.fullmatch(key) if bucket == BUCKET else None
    return found[1] if found else ""


def publish(folder: Path, file: Path, part: int | None, sha256: str) -> None:
    """Make the complete file the object, or the part: an earlier one of its number is removed."""
    with exclusive_lock(folder / "lock"):
        for earlier in find_paths(folder, f"{part}-*") if part else ():
            earlier.unlink()
        file.replace(folder / (f"{part}-{sha256}" if part else OBJECT_NAME))


def remove_empty(folder: Path) -> None:
    """Remove the folder of an upload that holds no object and no parts."""
    with exclusive_lock(folder / "lock"):
        if find_paths(folder, "*") == [folder / "lock"]:
            remove_tree(folder)


def join_parts(folder: Path, parts: Sequence[tuple[int, str]]) -> None:
    """Join the parts, as numbers and digests, to the object. A repetition has no effect."""
    with exclusive_lock(folder / "lock"):
        target = folder / OBJECT_NAME
        if target.exists() and not find_paths(folder, _PARTS):
            return
        if not parts or [*parts] != sorted(dict(parts).items()):
            raise UploadError(400, "InvalidPartOrder", "The parts are not in ascending order.")
        files = [folder / f"{number}-{digest}" for number, digest in parts]
        for file in files:
            if not file.exists():
                number = file.name.partition("-")[0]
                message = f"Part {number} was not uploaded, or it was replaced by another."
                raise UploadError(400, "InvalidPart", message)
        with open_replacement(target) as joined:
            for file in files:
                _append(file, joined.fileno())
            os.fsync(joined.fileno())
        # Also a part that is received twice: once published, a repetition would miss the others.
        for part in (*find_paths(folder, _PARTS), *find_paths(folder, ".*.tmp")):
            part.unlink()


def _count_bytes(folder: Path) -> int:
    total = 0
    for file in find_paths(folder, "*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def _append(path: Path, target: int) -> None:
    with path.open("rb") as file:
        while os.sendfile(target, file.fileno(), None, 1 << 30):
            pass
