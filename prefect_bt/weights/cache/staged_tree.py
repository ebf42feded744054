"""A tree that is being downloaded, until one rename publishes it.

    fills/<name>/journal     the digests of verified files by path (digest_index.py)
    fills/<name>/files/…     those files

Only files in the journal count. They are hashed again when a download is continued. One sync writes
all of them to the disk before small files become blobs, so that a power cut cannot leave a blob
without its bytes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from prefect_bt import codec
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.rehash import hash_file
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.writeback import sync_file_system
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.digest_index import DigestIndex, file_identity, source_id
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.cache.partial_file import GRANULE_BYTES, count_received, partial_file_id
from prefect_bt.weights.manifest import FileEntry, WeightsManifest, dump_manifest, summarize
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.worker_threads import Closed

_MAX_LINKS: Final = 60_000
"""Hard links of a blob after which a tree keeps a file of its own; ext4 allows 65,000."""


class StagingTree:
    """One tree. The caller holds its lock; threads add different files."""

    def __init__(self, cache: NodeCache, source: str, key: str, listing: Listing) -> None:
        self.cache, self.source, self.key, self.listing = cache, source, key, listing
        self.name = weights_tree_name(key, listing.revision)
        self.path = cache.staging_path(self.name)
        self.files = self.path / "files"
        self.index = DigestIndex(cache.index_path(source_id(source)))
        self._journal = DigestIndex(self.path / "journal")
        self._lock, self._is_closed = threading.Lock(), False
        ensure_private_folder(self.path)
        self.files.mkdir(exist_ok=True)
        self._done: dict[str, FileEntry] = {}
        self._resume()

    def close(self) -> None:
        """Close the tree once no thread adds a file. A thread that adds one later gets Closed."""
        with self._lock:
            self._is_closed = True

    def has(self, file: ListedFile) -> bool:
        return file.path in self._done

    def partial_folder(self, file: ListedFile) -> Path:
        """Return the folder of the file's partial download, which all trees with it share."""
        identity = file_identity(self.source, file) or f"{self.name}/{file.path}"
        return self.cache.partial_path(partial_file_id(identity))

    def missing_bytes(self, files: Sequence[ListedFile]) -> int:
        """Return the bytes of the files less those that partial downloads already have."""
        sizes = [(file, file.size or 0) for file in files]
        parts = {self.partial_folder(file): size for file, size in sizes if size > GRANULE_BYTES}
        small = sum(size for _, size in sizes if size <= GRANULE_BYTES)
        return small + sum(size - count_received(part) for part, size in parts.items())

    def find_sha256(self, file: ListedFile) -> str:
        """Return the digest from the listing or from an earlier download; "" if unknown."""
        if file.sha256 or not self.index:
            return file.sha256
        return self.index.get(file_identity(self.source, file))

    def link_cached(self, file: ListedFile) -> bool:
        """Add the file if its blob is in the cache. Return whether it is."""
        sha256, size = self.find_sha256(file), file.size
        if not sha256 or size is None or not self.cache.has_blob(sha256, size):
            return False
        return self._link(FileEntry(file.path, size, sha256), self.cache.blob_path(sha256))

    def link_verified(self, file: ListedFile, path: Path) -> bool:
        """Add a hard link to a file that others may have changed. Return whether it is intact."""
        entry = FileEntry(file.path, file.size or 0, file.sha256)
        return self._link(entry, path, is_trusted=False)

    def _link(self, entry: FileEntry, path: Path, *, is_trusted: bool = True) -> bool:
        place = self.files / entry.path
        try:
            with self._adding():
                _create(place, lambda: os.link(path, place))
            has_size = place.stat().st_size == entry.size
            is_intact = is_trusted or (has_size and hash_file(place) == entry.sha256)
        except OSError:  # evicted meanwhile, or it has too many links
            return False
        if is_intact:
            with self._adding():
                self._record(entry)
        return is_intact

    def add(self, move_to: Callable[[Path], object], entry: FileEntry, *, is_synced: bool) -> None:
        """Move a verified file into the tree, and name its blob if it is synced to the disk."""
        with self._adding():
            place = self.files / entry.path
            _create(place, lambda: move_to(place))
            if is_synced:
                self._share_content(self.path, entry)
            self._record(entry)

    def publish(self, *, holder: str = "") -> CachedTree:
        """Sync the tree to the disk and publish it under its name."""
        paths = sorted(file.path for file in self.listing.files)
        entries = tuple(self._done[path] for path in paths)
        source, revision = redact_url(self.source), self.listing.revision
        manifest = WeightsManifest(source, self.key, revision, entries, time.time())
        summary = codec.dumps(summarize(manifest), indent=1).encode()
        (self.path / "manifest.json").write_bytes(dump_manifest(manifest))
        (self.path / "summary.json").write_bytes(summary)
        sync_file_system(self.path)
        for entry in entries:
            self._share_content(self.path, entry)
        self.record_digests({entry.path: entry.sha256 for entry in entries})
        (self.path / "journal").unlink(missing_ok=True)
        tree = self.cache.publish(self.path, self.name, holder=holder)
        # Until now an eviction could delete a blob, and another download write it again.
        for entry in entries:
            with suppress(OSError):  # evicted meanwhile
                self._share_content(tree.path, entry)
        return tree

    def record_digests(self, found: Mapping[str, str]) -> None:
        """Remember verified digests, path -> sha256, of files listed without one."""
        listed = (file for file in self.listing.files if file.path in found and not file.sha256)
        known = {file_identity(self.source, file): found[file.path] for file in listed}
        known.pop("", None)
        with self._lock:
            self.index.add(known)

    def _share_content(self, tree: Path, entry: FileEntry) -> None:
        """Make a file of the tree and its blob hard links of one file; create a missing blob."""
        place, blob = Path(f"{tree}/files/{entry.path}"), self.cache.blob_path(entry.sha256)
        while True:
            with suppress(FileExistsError):
                _create(blob, lambda: os.link(place, blob), replaces=False)
                return
            with suppress(FileNotFoundError):  # the blob was evicted meanwhile
                ours, theirs = place.stat(), blob.stat()
                if ours.st_size != theirs.st_size:  # another program truncated it
                    blob.unlink()
                    continue
                if not os.path.samestat(ours, theirs) and theirs.st_nlink < _MAX_LINKS:
                    os.link(blob, tree / "link")
                    (tree / "link").replace(place)
                return

    @contextmanager
    def _adding(self) -> Generator[None]:
        """Hold the lock while a file is added. Closed when the tree is closed."""
        with self._lock:
            if self._is_closed:
                raise Closed
            yield

    def _record(self, entry: FileEntry) -> None:
        self._done[entry.path] = entry
        self._journal.add({entry.path: entry.sha256})

    def _resume(self) -> None:
        """Find the intact files of a killed process. Delete what it left unfinished."""
        for path in self.path.iterdir():
            if path.name not in {"files", "journal"}:
                remove_tree(path)
        for file in self.listing.files:
            if not (sha256 := self._journal.get(file.path)):
                continue
            place, blob = self.files / file.path, self.cache.blob_path(sha256)
            with suppress(OSError):
                # A blob was synced to the disk.
                if (blob.exists() and blob.samefile(place)) or hash_file(place) == sha256:
                    self._done[file.path] = FileEntry(file.path, place.stat().st_size, sha256)
                    self.cache.delete_leftover(self.partial_folder(file), older_than=0)


def _create(path: Path, operation: Callable[[], object], *, replaces: bool = True) -> None:
    """Run `operation`, which creates a file, in its folder and in place of what a kill left."""
    try:
        operation()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        operation()
    except FileExistsError:
        if not replaces:
            raise
        path.unlink()
        operation()
