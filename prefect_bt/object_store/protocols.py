"""The protocol of a store, and of a store on a disk.

Keys are relative and `/`-separated, without empty, `.` or `..` components. Every operation blocks.
An implementation is safe to use from several threads and processes at once. A missing object raises
ObjectNotFound; a store that does not answer raises StoreError after its own retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

from prefect_bt.errors import InvalidKey
from prefect_bt.filesystem.rehash import ByteCallback, ignore_progress

CHANGED_SOURCE: Final = "The file changed: the bytes for {key} are not the ones announced."


class ObjectInfo(NamedTuple):
    """`size` in bytes, `modified` in epoch seconds; `upload_id` if the object is unfinished."""

    key: str
    size: int
    modified: float
    upload_id: str = ""


class Store(Protocol):
    """A place for objects. `url` names it in messages and reopens it in another process."""

    @property
    def url(self) -> str: ...

    def get(self, key: str) -> bytes:
        """Return the whole object: for records and manifests, not for weights."""
        ...

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, or fewer at the end of the object."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object under the folder `prefix`, sorted by key; nothing if it is missing."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object atomically: readers see the old bytes or the new ones."""

    def create(self, key: str, data: bytes) -> None:
        """Write a new object; ObjectExists if there is one. One of several racing writers wins."""

    def upload_verified(
        self, key: str, source: Path, *, sha256: str = "", on_bytes: ByteCallback = ignore_progress
    ) -> str:
        """Write or replace an object with a file's bytes. Return the digest (hex) of these bytes.

        The file is read once. The object is visible when all bytes are stored. If `sha256` is given
        and differs, store nothing and raise StoreError. An interrupted multipart upload continues
        after its verified parts, which `on_bytes` counts too. An error raised by `on_bytes` ends
        the upload. An OSError of the source file is passed on.
        """
        ...

    def download(self, key: str, target: Path) -> None:
        """Write the object's bytes into a file, which appears when it is complete."""

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is not an error."""

    def presign(self, key: str, *, seconds: int) -> str:
        """Return a URL that answers GET, also with Range, for `seconds`; "" if there is none."""
        ...

    def list_unfinished_uploads(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the unfinished uploads under `prefix`, or below our keys, running ones included."""
        ...

    def abort_upload(self, upload: ObjectInfo) -> None:
        """Abort an upload, if it still exists. A running upload of another process fails."""


class RangeReader(Protocol):
    """A store from which ranges of objects are read: all that a download needs."""

    @property
    def url(self) -> str: ...

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Return these bytes of an object, fewer at its end."""
        ...


@runtime_checkable
class SupportsLinks(Protocol):
    """A store whose objects are files of this machine."""

    def link_file(self, key: str, source: Path) -> bool:
        """Make `source` the object by a hard link, without reading it. Return whether that worked.

        The file must be synced, and nothing may write to it any more. An existing object stays, and
        the result is True. After False, upload the file. An OSError of the source is passed on.
        """
        ...

    def find_local_path(self, key: str) -> Path | None:
        """Return the object's file, to be read or linked, never written; None if it is missing."""
        ...


def validate_key(key: str, *, url: str, reserved: tuple[str, ...] = ()) -> str:
    """Return `key`. InvalidKey for empty, `.`, `..` or reserved components, and NUL."""
    parts = key.split("/")
    bad = any(part in {"", ".", ".."} for part in parts) or "\0" in key
    if bad or parts[0] in reserved:
        what = f"{key!r} is not a key of {url}."
        hint = "Keys are relative, separated by '/', without empty, '.' or '..' parts."
        raise InvalidKey(what, url=url, key=key, next_step=hint)
    return key
