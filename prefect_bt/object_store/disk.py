"""A folder as a store. Standard library only, so that a node opens it in milliseconds.

    <root>/                     created for its owner only, unless PREFECT_BT_SHARED_STORE is set
    <root>/<key>                an object
    <root>/.prefect-bt-tmp/     temporary files: never listed, removed when a day old

An object appears in one atomic step: by a rename, or by a hard link if it must not replace another
one. Its bytes are synced before, so that a name that survives a power cut has its bytes.

obstore's LocalStore does not sync, takes as long for a write of 512 MiB as this store with the
sync, leaves `#1` files beside its objects after a kill, and needs 30 ms for its import.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.filesystem.confined import NotRegularFile, open_regular
from prefect_bt.filesystem.permissions import ensure_store_folder
from prefect_bt.object_store.disk_copy import copy_and_hash, copy_bytes
from prefect_bt.object_store.disk_staging import TempFile, TempFolder, retry_with_parent_folder
from prefect_bt.object_store.protocols import (
    CHANGED_SOURCE,
    ByteCallback,
    ObjectInfo,
    UnfinishedUpload,
    ignore_bytes,
    validate_key,
)

_TEMP_FOLDER: Final = ".prefect-bt-tmp"
_NEXT_STEPS: Final = {
    errno.ENOSPC: "Free space there, or point PREFECT_BT_STORE at a larger disk.",
    errno.EDQUOT: "Free space there, or raise the quota.",
    errno.EACCES: "Give this user write access to it.",
    errno.EPERM: "Give this user write access to it (on a file system with hard links).",
    errno.EROFS: "Mount it writable.",
    errno.ENAMETOOLONG: "Use shorter names.",
}


class DiskStore:
    """Implements Store, SupportsLinks and SupportsUploadListing on a local or shared folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self.url = self._root.as_uri()
        self._temporary = TempFolder(self._root / _TEMP_FOLDER)

    @classmethod
    def open(cls, url: str) -> DiskStore:
        """Open a path, or `file://` and an absolute path."""
        if not url.startswith("file://"):
            return cls(Path(url))
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise StoreError(f"{url!r} names no local folder.", url=url, next_step="file:///path")
        return cls(Path(unquote(parts.path)))

    def get(self, key: str) -> bytes:
        with self._translate_errors(key), self._opened(key) as stream:
            return stream.read()

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        with self._translate_errors(key), self._opened(key) as stream:
            stream.seek(start)
            return stream.read(length)

    def put(self, key: str, data: bytes) -> None:
        with self._stage(key, lambda fd: _write_all(fd, data)) as (staged, path):
            staged.replace(path)

    def create(self, key: str, data: bytes) -> None:
        with self._translate_errors(key):
            is_new = not self._path(key).exists()
        if is_new:
            staging = self._stage(key, lambda fd: _write_all(fd, data))
            with staging as (staged, path), contextlib.suppress(FileExistsError):
                staged.create(path)
                return
        raise ObjectExists(f"{key} is already in {self.url}.", url=self.url, key=key)

    def upload(self, key: str, source: Path) -> None:
        self._upload(key, source, copy_bytes)

    def upload_verified(
        self, key: str, source: Path, *, sha256: str = "", on_bytes: ByteCallback | None = None
    ) -> str:
        digest = ""

        def copy_exactly(fd: int, target: int) -> None:
            nonlocal digest
            digest = copy_and_hash(fd, target, on_bytes=on_bytes or ignore_bytes)
            if sha256 not in {"", digest}:
                raise StoreError(CHANGED_SOURCE.format(key=key), url=self.url, key=key)

        self._upload(key, source, copy_exactly)
        return digest

    def link_file(self, key: str, source: Path) -> bool:
        path = self._path(key)
        # A link to a symbolic link would be another one, to bytes that can still change.
        if not stat.S_ISREG(source.lstat().st_mode):
            return False
        try:
            ensure_store_folder(self._root)
            retry_with_parent_folder(path, lambda: os.link(source, path))
        except FileExistsError:
            return path.is_file()
        except OSError:
            # Another file system, too many links, no permission: a copy works, or fails with a
            # message.
            return False
        return True

    def find_local_path(self, key: str) -> Path | None:
        path = self._path(key)
        with self._translate_errors(key):
            return path if path.is_file() else None

    def abort_uploads(self, prefix: str) -> int:
        """Return 0: temporary files are removed by age."""
        return 0

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the temporary files of running and killed writers."""
        with self._translate_errors(_TEMP_FOLDER):
            found = self._temporary.list_files()
        for name, size, at in found:
            yield UnfinishedUpload(f"{_TEMP_FOLDER}/{name}", name, at, size)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        with self._translate_errors(upload.key):
            self._temporary.delete(upload.id)

    def presign(self, key: str, *, seconds: int) -> str:
        return ""

    def download(self, key: str, target: Path) -> None:
        temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with self._translate_errors(key):
                with self._opened(key) as reader, temporary.open("xb") as writer:
                    copy_bytes(reader.fileno(), writer.fileno())
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        base = self._path(prefix) if prefix else self._root
        with self._translate_errors(prefix):
            found = sorted(self._walk(base), key=lambda info: info.key)
        yield from found

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._translate_errors(key):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path.unlink()
            with contextlib.suppress(OSError):  # the first folder that is not empty
                for folder in path.parents[: len(Path(key).parts) - 1]:
                    folder.rmdir()

    def _path(self, key: str) -> Path:
        return self._root / validate_key(key, url=self.url, reserved=_TEMP_FOLDER)

    def _opened(self, key: str) -> BinaryIO:
        """Open a regular file only: a pipe in its place would block the reader."""
        path = self._path(key)
        try:
            return os.fdopen(open_regular(str(path), follow=True), "rb")
        except NotRegularFile as error:
            if path.is_dir():
                raise IsADirectoryError from error
            what = f"Not a regular file: {path}, for {key}."
            raise StoreError(what, url=self.url, key=key, next_step="Remove it.") from error

    def _upload(self, key: str, source: Path, fill: Callable[[int, int], None]) -> None:
        """Store a file. `fill` copies from its first descriptor to its second."""
        with source.open("rb") as reader:
            fd = reader.fileno()
            with self._stage(key, lambda target: fill(fd, target)) as (staged, path):
                staged.replace(path)

    @contextlib.contextmanager
    def _stage(self, key: str, fill: Callable[[int], None]) -> Generator[tuple[TempFile, Path]]:
        """Yield a temporary file with synced bytes, and the path of the object."""
        path = self._path(key)
        with self._translate_errors(key):
            ensure_store_folder(self._root)
            with self._temporary.create_file() as staged:
                fill(staged.fd)
                os.fsync(staged.fd)
                yield staged, path

    def _walk(self, folder: Path) -> Iterator[ObjectInfo]:
        missing = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        pending = [str(folder)]
        while pending:
            with missing, os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        with missing:
                            facts = entry.stat()
                            key = os.path.relpath(entry.path, self._root)
                            yield ObjectInfo(key, facts.st_size, facts.st_mtime)
                    elif entry.name != _TEMP_FOLDER:
                        pending.append(entry.path)

    @contextlib.contextmanager
    def _translate_errors(self, key: str) -> Generator[None]:
        """Turn an OSError into a StoreError."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ObjectNotFound(f"No {key} in {self.url}.", url=self.url, key=key) from error
        except OSError as error:
            number = error.errno or 0
            place = error.filename2 or error.filename or self._root
            what = "The disk is full" if number == errno.ENOSPC else os.strerror(number)
            message, hint = f"{what}: {place}, for {key}.", _NEXT_STEPS.get(number, "")
            raise StoreError(message, url=self.url, key=key, next_step=hint) from error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
