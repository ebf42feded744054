"""A tree on its way: what is here is linked, what comes is written, the whole is published at once.

    fills/<name>/journal     which boot, then a line a file: `{"path", "sha256", "size"}`
    fills/<name>/files/…     those files

A file counts when the journal says so. Small files get their blob's name only after everything is
on the disk, all with one sync: a name made of a digest must not outlive its bytes when power is
lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect_bt import codec
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.writeback import sync_file_system
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.weights.cache.digest_index import DigestIndex, file_identity, source_id
from prefect_bt.weights.cache.node_cache import LINK_UNSUPPORTED_ERRNOS, CachedTree, NodeCache
from prefect_bt.weights.cache.partial_file import boot_id
from prefect_bt.weights.manifest import FileEntry, WeightsManifest, dump_manifest, summarize
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.threads import Closed
from prefect_bt.weights.url_redaction import redact_url


class StagingTree:
    """One tree; the caller holds its lock. Threads add different files."""

    def __init__(self, cache: NodeCache, source: str, key: str, listing: Listing) -> None:
        self.cache, self.source, self.key, self.listing = cache, source, key, listing
        self.name = weights_tree_name(key, listing.revision)
        self.path = cache.staging_path(self.name)
        self.files = self.path / "files"
        self.index = DigestIndex(cache.index_path(source_id(source)))
        self._made: set[Path] = set()
        self._lock = threading.Lock()
        self._closed = False
        ensure_private_folder(self.path)
        self.files.mkdir(exist_ok=True)
        self._clear()
        self._done = self._resume()
        self._journal = os.open(
            self.path / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def close(self) -> None:
        """Close the journal once no thread adds a file. A later one gets Closed. Idempotent."""
        with self._lock:
            if not self._closed:
                os.close(self._journal)
            self._closed = True

    # -- files --------------------------------------------------------------------------------

    def has(self, file: ListedFile) -> bool:
        return file.path in self._done

    def find_sha256(self, file: ListedFile) -> str:
        """As far as the source or an earlier fetch tells."""
        return file.sha256 or self.index.get(file_identity(self.source, file))

    def link_cached(self, file: ListedFile) -> bool:
        """Whether the file's content is here already; then it is in the tree now."""
        sha256 = self.find_sha256(file)
        if not sha256 or file.size is None or not self.cache.has_blob(sha256, file.size):
            return False
        with self._adding():
            try:
                self._link(self.cache.blob_path(sha256), self._target_path(file.path))
            except FileNotFoundError:  # evicted in this moment
                return False
            self._record(file.path, sha256, file.size)
        return True

    def write(self, file: ListedFile, data: bytes | memoryview, sha256: str) -> None:
        """A small file, verified by the caller."""
        with self._adding():
            place = self._target_path(file.path)
            try:
                descriptor = _create(place)
            except FileExistsError:  # written by a process that did not live to say so
                place.unlink()
                descriptor = _create(place)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            self._record(file.path, sha256, len(data))

    def move_in(self, file: ListedFile, path: Path, sha256: str, size: int) -> None:
        """As `write`, for a file of this file system that is whole: it is moved."""
        with self._adding():
            path.chmod(0o444)
            path.replace(self._target_path(file.path))
            self._record(file.path, sha256, size)

    def link_verified(self, file: ListedFile, path: Path) -> bool:
        """As `write`, for a file that somebody keeps on this file system: a hard link to it.

        It is read and compared: what others keep may have been damaged since.
        """
        place = self._target_path(file.path)
        try:
            with self._adding():
                self._link(path, place, copy=False)
            right = place.stat().st_size == file.size and _digest(place) == file.sha256
        except OSError:
            return False
        with self._adding():
            if right:
                self._record(file.path, file.sha256, file.size or 0)
            else:
                place.unlink()
        return right

    def add_blob(self, file: ListedFile, path: Path, sha256: str, size: int) -> None:
        """A large file, verified and synced: a blob, and into the tree with it.

        Into the tree first: whoever evicts the blob in between leaves its bytes to us.
        """
        with self._adding():
            place = self._target_path(file.path)
            self._link(path, place)
            self._ensure_blob(place, sha256)
            self._record(file.path, sha256, size)

    def drop(self) -> None:
        """Nothing of it may be used."""
        remove_tree(self.path)

    # -- publishing ---------------------------------------------------------------------------

    def publish(self, desired: Sequence[ListedFile], *, holder: str = "") -> CachedTree:
        """The tree, whole, on the disk, and under its name."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_file_system(descriptor)
            for file in desired:
                self._ensure_blob(self.files / file.path, self._done[file.path][0])
            self.record_digests({file.path: self._done[file.path] for file in desired})
            self._write_manifest(desired)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        (self.path / "journal").unlink(missing_ok=True)
        tree = self.cache.publish(self.path, self.name, holder=holder)
        for file in desired:
            with suppress(OSError):  # evicted in this moment
                self._relink_to_blob(tree, file.path)
        return tree

    def _relink_to_blob(self, tree: CachedTree, path: str) -> None:
        """Make a file of the published tree one file with its blob again.

        Before the tree was published an eviction may have taken the blob, and another fill may have
        written the same content again. From then on no eviction takes what the tree names.
        """
        file, sha256 = tree.files_folder / path, self._done[path][0]
        try:
            self.cache.link_blob(file, sha256)
        except FileExistsError:
            pass
        else:
            return
        blob = self.cache.blob_path(sha256)
        ours, theirs = file.stat(), blob.stat()
        if not os.path.samestat(ours, theirs) and ours.st_size == theirs.st_size:
            fresh = tree.path / "link"
            fresh.unlink(missing_ok=True)
            os.link(blob, fresh)
            fresh.replace(file)

    def _write_manifest(self, desired: Sequence[ListedFile]) -> None:
        rows = ((file.path, *self._done[file.path]) for file in desired)
        entries = (FileEntry(path, size, sha256) for path, sha256, size in rows)
        manifest = WeightsManifest(
            source=redact_url(self.source),  # a signature is nobody else's
            key=self.key,
            revision=self.listing.revision,
            entries=tuple(sorted(entries, key=lambda entry: entry.path)),
            created_at=time.time(),
        )
        summary = codec.dumps(summarize(manifest), indent=1).encode()
        for name, data in (("manifest.json", dump_manifest(manifest)), ("summary.json", summary)):
            with (self.path / name).open("wb") as writer:
                writer.write(data)
                writer.flush()
                os.fsync(writer.fileno())

    def _ensure_blob(self, place: Path, sha256: str) -> None:
        """The content under its own name too; one that has it already is used instead."""
        blob = self.cache.blob_path(sha256)
        while True:
            try:
                return self.cache.link_blob(place, sha256)
            except FileExistsError:
                pass
            with suppress(FileNotFoundError):  # evicted in this moment
                ours, theirs = place.stat(), blob.stat()
                if os.path.samestat(ours, theirs):
                    return None
                if ours.st_size == theirs.st_size:
                    return self._link_existing_blob(blob, place)
                blob.unlink()  # somebody cut it off; those who have it are found by a verify

    def _link_existing_blob(self, blob: Path, place: Path) -> None:
        try:
            self._link(blob, place, copy=False)
        except OSError as error:
            if error.errno not in LINK_UNSUPPORTED_ERRNOS:
                raise

    def record_digests(self, found: dict[str, tuple[str, int]]) -> None:
        """Path -> (sha256, size), verified: for the next time that the source lists these files."""
        listed = (file for file in self.listing.files if file.path in found and not file.sha256)
        known = {file_identity(self.source, file): found[file.path] for file in listed}
        known.pop("", None)
        with self._lock:
            self.index.add(known)

    # -- places -------------------------------------------------------------------------------

    def _target_path(self, path: str) -> Path:
        place = self.files / path
        if place.parent not in self._made:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(place.parent)
        return place

    def _link(self, source: Path, place: Path, *, copy: bool = True) -> None:
        """`place` becomes a name of these bytes, or a copy where there can be no more names."""
        fresh = place
        if place.exists():
            fresh = self.path / f"link-{threading.get_ident()}"
            fresh.unlink(missing_ok=True)
        try:
            os.link(source, fresh)
        except OSError as error:
            if error.errno not in LINK_UNSUPPORTED_ERRNOS or not copy:
                raise
            shutil.copyfile(source, fresh)
            fresh.chmod(0o444)
        if fresh is not place:
            fresh.replace(place)

    # -- the journal --------------------------------------------------------------------------

    def _record(self, path: str, sha256: str, size: int) -> None:
        line = json.dumps({"path": path, "sha256": sha256, "size": size})
        self._done[path] = (sha256, size)
        os.write(self._journal, line.encode() + b"\n")

    @contextmanager
    def _adding(self) -> Generator[None]:
        """Hold the lock while a file is added. Closed when the tree was closed before."""
        with self._lock:
            if self._closed:
                raise Closed
            yield

    def _clear(self) -> None:
        """What a process had in its hands when it was killed."""
        for left in self.path.iterdir():
            if left.name not in {"files", "journal"}:
                remove_tree(left)

    def _resume(self) -> dict[str, tuple[str, int]]:
        journal = self.path / "journal"
        lines = [line for line in _read_lines(journal) if line]
        first = lines[0] if lines else {}
        same_boot = first.get("boot") == boot_id() and bool(boot_id())
        done: dict[str, tuple[str, int]] = {}
        for line in lines[1:]:
            with suppress(KeyError, OSError):
                path, sha256, size = line["path"], line["sha256"], line["size"]
                place = self.files / path
                if place.stat().st_size == size and (same_boot or _digest(place) == sha256):
                    done[path] = (sha256, size)
        fresh = journal.with_name("journal.new")
        rows = [
            {"boot": boot_id()},
            *({"path": path, "sha256": d, "size": n} for path, (d, n) in done.items()),
        ]
        fresh.write_text("".join(json.dumps(row) + "\n" for row in rows))
        fresh.replace(journal)
        return done


def _create(place: Path) -> int:
    return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)


def _read_lines(journal: Path) -> list[dict[str, Any]]:
    found: list[Any] = []
    with suppress(FileNotFoundError):
        for line in journal.read_bytes().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def _digest(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()
