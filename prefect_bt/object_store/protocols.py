"""What the services ask of a store: one small protocol a verb.

Keys are `/`-separated, relative, without empty, `.` or `..` components. Every verb blocks. An
implementation is safe to use from several threads and processes at once. A missing object raises
ObjectNotFound; a store that cannot be reached raises StoreError after its own retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class ObjectInfo:
    """`size` in bytes, `modified` in epoch seconds."""

    key: str
    size: int
    modified: float


class SupportsGet(Protocol):
    def get(self, key: str) -> bytes:
        """The whole object: for records and manifests, not for weights."""
        ...

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`; fewer at the end."""
        ...


class SupportsPut(Protocol):
    def put(self, key: str, data: bytes) -> None:
        """Write or replace, atomically: readers see the old object or the new one."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Write only if nothing is there, else ObjectExists; one of many racers wins."""
        ...


class SupportsUpload(Protocol):
    def upload(self, key: str, source: Path) -> None:
        """A file's bytes; replaces. Nothing is visible under `key` until all of them are stored."""
        ...

    def download(self, key: str, target: Path) -> None:
        """The object's bytes into a file that appears whole or not at all."""
        ...


ByteCallback = Callable[[int], None]
"""Called with how many more bytes are on their way to being safe; from any thread."""


class SupportsVerifiedUpload(Protocol):
    def upload_verified(
        self, key: str, source: Path, *, sha256: str = "", on_bytes: ByteCallback | None = None
    ) -> str:
        """As upload, read once; returns the digest (hex) of the bytes that are stored.

        With `sha256`, bytes of another digest leave nothing: StoreError.

        Where the store takes files in parts, one that was interrupted goes on with the parts that
        are there, as far as their bytes are right. `on_bytes` hears of those too; what it raises
        ends the upload. An OSError of the source itself (gone, unreadable) passes through.
        """
        ...

    def abort_uploads(self, prefix: str) -> int:
        """Give up what was begun under the folder `prefix` and never finished; returns how many.

        Only where nobody is uploading there: a running upload of another process fails.
        """
        ...


class SupportsPresign(Protocol):
    def presign(self, key: str, *, seconds: int) -> str:
        """An address that anyone may GET, with Range, for so long; "" where the store has none."""
        ...


class SupportsList(Protocol):
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object under the folder `prefix`, sorted by key. Nothing there: nothing yielded."""
        ...


class SupportsDelete(Protocol):
    def delete(self, key: str) -> None:
        """Idempotent: a missing object is no error."""
        ...


@runtime_checkable
class SupportsLinks(Protocol):
    """A store whose objects are files of this machine; what has no such files lacks this verb."""

    def link_file(self, key: str, source: Path) -> bool:
        """Make the file's own bytes the object, by a hard link: nothing is copied or read.

        For a file whose bytes are on the disk (synced) and that nobody writes to any more. True:
        there is an object, this one or the one that was there before, which stays. False where that
        cannot be, for whatever reason: upload it. An OSError of the source itself passes through.
        """
        ...

    def find_local_path(self, key: str) -> Path | None:
        """The object's file, to be read or linked, never written; None where there is none."""
        ...


@dataclass(frozen=True)
class UnfinishedUpload:
    """An upload that was never finished. `id` tells two of one key apart.

    `modified_at`: when somebody last wrote to it, in epoch seconds.
    """

    key: str
    id: str
    modified_at: float
    bytes: int


@runtime_checkable
class SupportsUploadListing(Protocol):
    """A store that can tell what was begun in it; one that cannot lacks this verb."""

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Every upload below our keys that is not finished, whether somebody is at it or not."""
        ...

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Idempotent. Only where nobody is at it: a running upload of another process fails."""
        ...


class Store(
    SupportsGet,
    SupportsPut,
    SupportsUpload,
    SupportsVerifiedUpload,
    SupportsPresign,
    SupportsList,
    SupportsDelete,
    Protocol,
):
    """A place for objects. `url` names it in messages and reopens it in another process."""

    @property
    def url(self) -> str: ...
