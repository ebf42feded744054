"""A folder as a store. Standard library only, so that a node opens it in milliseconds.

    <root>/                     created for its owner only, unless PREFECT_BT_SHARED_STORE is set
    <root>/<key>                an object
    <root>/.prefect-bt-tmp/     temporary files: never listed; gc removes what killed writers left
    <root>/.prefect-bt-store    the ID of the store

A disk that is not mounted leaves no folder, or an empty one, and that is not an empty store: a
process that has seen the ID raises StoreError until that store is back, and creates none in its
place. So does a new process whose machine remembers a store of this folder on another disk.

An object appears in one atomic step: by a rename, or by a hard link if it must not replace another
one. Its bytes are synced before, so that a name that survives a power cut has its bytes.

obstore's LocalStore does not sync, is not faster, and needs 30 ms for its import.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from urllib.parse import unquote

from prefect_bt.errors import InvalidKey, ObjectExists, ObjectNotFound, StoreError
from prefect_bt.filesystem.confined import NotRegularFile, open_regular
from prefect_bt.filesystem.permissions import ensure_private_folder, ensure_store_folder
from prefect_bt.filesystem.rehash import ByteCallback, ignore_progress
from prefect_bt.filesystem.replacement import open_replacement
from prefect_bt.host.writeback import start_writeback
from prefect_bt.object_store.protocols import CHANGED_SOURCE, ObjectInfo, validate_key

T = TypeVar("T")

_TEMP_FOLDER: Final = ".prefect-bt-tmp"
_MAX_ATTEMPTS: Final = 20
_STEP: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_ID_FILE: Final = ".prefect-bt-store"
_RESERVED: Final = (_TEMP_FOLDER, _ID_FILE)
_KNOWN: Final = dict[Path, str]()
"""Root -> ID of the store with which this process works."""
_NEXT_STEPS: Final = {
    errno.ENOSPC: "Free space there, or point PREFECT_BT_STORE at a larger disk.",
    errno.EDQUOT: "Free space there, or raise the quota.",
    errno.EACCES: "Give this user write access to it.",
    errno.EPERM: "Give this user write access to it (on a file system with hard links).",
    errno.EROFS: "Mount it writable.",
    errno.ENAMETOOLONG: "Use shorter names.",
}


class DiskStore:
    """Implements Store and SupportsLinks on a local or shared folder.

    `memory`: folder in which this machine keeps the IDs of its stores; None: for this process only.
    """

    def __init__(self, root: Path, memory: Path | None = None) -> None:
        self._root = root.expanduser().absolute()
        self.url = self._root.as_uri()
        self._temporary, self._id_file = self._root / _TEMP_FOLDER, self._root / _ID_FILE
        name = hashlib.sha256(bytes(self._root)).hexdigest()[:16]
        self._memory = memory and memory / name
        with contextlib.suppress(StoreError):
            self._require_presence()

    @classmethod
    def open(cls, url: str, memory: Path | None = None) -> DiskStore:
        """Open a path, or `file://` and an absolute path."""
        if not url.startswith("file://"):
            return cls(Path(url), memory)
        if not url.startswith("file:///"):
            hint = "Write it as file:///path."
            raise StoreError(f"{url!r} names no local folder.", url=url, next_step=hint)
        return cls(Path(unquote(url.removeprefix("file://"))), memory)

    def get(self, key: str) -> bytes:
        with self._translate_errors(key), self._opened(key) as stream:
            return stream.read()

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        with self._translate_errors(key), self._opened(key) as stream:
            stream.seek(start)
            return stream.read(length)

    def put(self, key: str, data: bytes) -> None:
        self._write(key, lambda file: file.write(data), os.replace)

    def create(self, key: str, data: bytes) -> None:
        with self._translate_errors(key):
            if self._path(key).exists():
                raise FileExistsError
        self._write(key, lambda file: file.write(data), os.link)

    def upload_verified(
        self, key: str, source: Path, *, sha256: str = "", on_bytes: ByteCallback = ignore_progress
    ) -> str:
        def copy(file: BinaryIO) -> str:
            digest = _copy_and_hash(reader.fileno(), file.fileno(), on_bytes)
            if sha256 not in {"", digest}:
                raise StoreError(CHANGED_SOURCE.format(key=key), url=self.url, key=key)
            return digest

        with source.open("rb") as reader:
            return self._write(key, copy, os.replace)

    def link_file(self, key: str, source: Path) -> bool:
        path = self._path(key)
        # A link to a symbolic link would be another one, to bytes that can still change.
        if not stat.S_ISREG(source.lstat().st_mode):
            return False
        try:
            self._retry_with_parent_folder(path, lambda: os.link(source, path))
        except FileExistsError:
            return path.is_file()
        except OSError:
            return False  # another file system, too many links, no permission: a copy may work
        return True

    def find_local_path(self, key: str) -> Path | None:
        path = self._path(key)
        with self._translate_errors(key):
            if path.is_file():
                return path
            self._require_presence()
            return None

    def list_unfinished_uploads(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Return the temporary files of running and killed writers; they belong to no prefix."""
        with self._translate_errors(_TEMP_FOLDER):
            self._require_presence()
            return iter([] if prefix else list(self._walk(self._temporary)))

    def abort_upload(self, upload: ObjectInfo) -> None:
        with self._translate_errors(upload.key):
            (self._root / upload.key).unlink(missing_ok=True)

    def presign(self, key: str, *, seconds: int) -> str:
        return ""

    def download(self, key: str, target: Path) -> None:
        with (
            self._translate_errors(key),
            self._opened(key) as reader,
            open_replacement(target) as writer,
        ):
            list(_copy(reader.fileno(), writer.fileno()))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        base = self._path(prefix) if prefix else self._root
        with self._translate_errors(prefix):
            self._require_presence()
            return iter(sorted(self._walk(base)))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._translate_errors(key):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._require_presence()
            with contextlib.suppress(OSError):  # the first folder that is not empty
                for folder in path.parents[: len(Path(key).parts) - 1]:
                    folder.rmdir()

    def _path(self, key: str) -> Path:
        return Path(f"{self._root}/{validate_key(key, url=self.url, reserved=_RESERVED)}")

    def _opened(self, key: str) -> BinaryIO:
        """Open a regular file only: a pipe in its place would block the reader."""
        return os.fdopen(open_regular(str(self._path(key)), follow=True), "rb")

    def _write(
        self, key: str, fill: Callable[[BinaryIO], T], publish: Callable[[Path, Path], None]
    ) -> T:
        """Fill and sync a temporary file, and publish it at the object's path."""
        path = self._path(key)
        with self._translate_errors(key):
            self._require_presence()
            if self._root not in _KNOWN:
                self._create_id()
            return self._write_file(path, fill, publish)

    def _write_file(
        self, path: Path, fill: Callable[[BinaryIO], T], publish: Callable[[Path, Path], None]
    ) -> T:
        temporary = self._temporary / uuid.uuid4().hex
        file = self._retry_with_parent_folder(temporary, lambda: temporary.open("x+b"))
        try:
            with file:
                filled = fill(file)
                file.flush()
                os.fsync(file.fileno())
            self._retry_with_parent_folder(path, lambda: publish(temporary, path))
        finally:
            temporary.unlink(missing_ok=True)
        return filled

    def _create_id(self) -> None:
        """Give a new store its ID. One of several racing processes wins."""
        new = uuid.uuid4().hex.encode()
        with contextlib.suppress(FileExistsError):
            self._write_file(self._id_file, lambda file: file.write(new), os.link)
        self._require_presence()

    def _retry_with_parent_folder(self, target: Path, operation: Callable[[], T]) -> T:
        """Run `operation`, and again after creating the parent folder of `target` if missing."""
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                return operation()
            self._require_presence()
            ensure_store_folder(self._root)
            # A concurrent delete can remove the folder while it is empty, at any moment.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                target.parent.mkdir(parents=True, exist_ok=True)
        return operation()

    def _require_presence(self) -> None:
        """Raise StoreError if the store that was used here is not there now."""
        known = _KNOWN.get(self._root) or self._recall()
        store_id = _read_text(self._id_file)  # after `known`: another thread may create it
        if store_id == known or not known:
            if store_id and self._root not in _KNOWN:
                self._remember(store_id)
            return
        problem = "is not the one that was used here" if store_id else "is not there any more"
        forget = f"rm {self._memory}" if self._memory else "restart the processes that use it"
        raise StoreError(
            f"The store in the folder {self._root} {problem}.",
            url=self.url,
            next_step="Mount its disk, or move it back: waiting jobs then continue. If it was "
            f"deleted on purpose, begin a new one: prefect-bt down; {forget}",
        )

    def _recall(self) -> str:
        """Return the ID that the machine remembers; "" if the disk of that store is here."""
        if self._memory is None:
            return ""
        known, _, device = _read_text(self._memory).partition(" ")
        return "" if device == _find_device(self._root) else known

    def _remember(self, store_id: str) -> None:
        _KNOWN[self._root] = store_id
        text = f"{store_id} {_find_device(self._root)}"
        if self._memory and _read_text(self._memory) != text:
            with contextlib.suppress(OSError):  # a state folder that this user may not write
                ensure_private_folder(self._memory.parent)
                with open_replacement(self._memory) as file:
                    file.write(text.encode())

    def _walk(self, folder: Path) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder, without those that are deleted meanwhile."""
        pending, start = [str(folder)], len(str(self._root / "x")) - 1
        id_file = str(self._id_file)
        while pending:
            try:
                with os.scandir(pending.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir():
                            if entry.name != _TEMP_FOLDER:
                                pending.append(entry.path)
                            continue
                        if entry.path == id_file:
                            continue
                        try:
                            facts = entry.stat()
                        except FileNotFoundError:
                            self._require_presence()
                            continue
                        yield ObjectInfo(entry.path[start:], facts.st_size, facts.st_mtime)
            except (FileNotFoundError, NotADirectoryError):
                self._require_presence()

    @contextlib.contextmanager
    def _translate_errors(self, key: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            url, irregular = self.url, isinstance(error, NotRegularFile)
            is_folder = irregular and (self._root / key).is_dir()
            if is_folder or isinstance(error, FileNotFoundError | IsADirectoryError):
                self._require_presence()
                raise ObjectNotFound(f"No {key} in {url}.", url=url, key=key) from error
            if isinstance(error, FileExistsError) and self._root.is_dir():
                raise ObjectExists(f"{key} is already in {url}.", url=url, key=key) from error
            number, place = error.errno or 0, error.filename2 or error.filename or self._root
            text = str(error.strerror or type(error).__name__).capitalize()
            what = f"{'The disk is full' if number == errno.ENOSPC else text}: {place}, for {key}."
            hint = "Remove it." if irregular else _NEXT_STEPS.get(number, "")
            form = InvalidKey if number == errno.ENAMETOOLONG else StoreError
            raise form(what, url=url, key=key, next_step=hint) from error


def _read_text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _find_device(folder: Path) -> str:
    """Return the device of the folder, or of the nearest one above it that exists."""
    for existing in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return str(existing.stat().st_dev)
    return ""


def _copy_and_hash(source: int, target: int, on_bytes: ByteCallback) -> str:
    """Copy an open file into an empty one. Return the SHA-256 of the copy.

    While the next step is copied, another thread hashes the last one from memory and starts its
    writeback, so that the sync at the end has little left to do.
    """
    digest = hashlib.sha256()

    def copy() -> Iterator[tuple[int, int]]:
        for start, end in _copy(source, target):
            on_bytes(end - start)
            yield start, end

    def hash_step(step: tuple[int, int]) -> None:
        at, end = step
        while data := os.pread(target, min(_READ_BYTES, end - at), at):
            digest.update(data)
            at += len(data)
        start_writeback(target, step[0], end - step[0])

    if os.fstat(source).st_size <= _STEP:  # a thread would cost more than it saves
        list(map(hash_step, copy()))
        return digest.hexdigest()
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        list(pool.map(hash_step, copy()))
    return digest.hexdigest()


def _copy(source: int, target: int) -> Iterator[tuple[int, int]]:
    """Copy an open file into an empty one. Yield the start and the end of each step."""
    at = 0
    for copy_step in (_copy_in_kernel, _copy_in_user_space):
        while copied := copy_step(source, target, at):
            yield at, at + copied
            at += copied


def _copy_in_kernel(source: int, target: int, at: int) -> int:
    """Return the number of copied bytes; 0 at the end, and for bytes that the kernel cannot copy.

    It shares them (a reflink) if the file system can. It copies nothing between some file systems,
    and reports an end at once for files of /proc.
    """
    try:
        return os.copy_file_range(source, target, _STEP, at, at)
    except (OSError, AttributeError):  # some builds of Python do not have the function
        return 0


def _copy_in_user_space(source: int, target: int, at: int) -> int:
    return os.pwrite(target, os.pread(source, _READ_BYTES, at), at)
