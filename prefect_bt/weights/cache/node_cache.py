"""The node cache: weights sources on this machine's disk, each content once, ready to be mounted.

    <state dir>/weights/
        blobs/<xx>/<sha256>     a content, read-only
        trees/<name>/           one source at one revision: <key>-<revision>
            files/              hard links to blobs; nodes mount this folder
            manifest.json  summary.json
            used                its modification time is the time of the last use
            stored              URL of the store that was seen to have a copy
            leases/<job id>     a job that needs the tree
        fills/<name>/           a tree that is being downloaded (staged_tree.py)
        parts/<id>/             a large file that is being downloaded (partial_file.py)
        index/<id>              digests of a source's files (digest_index.py)
        locks/<name>            lock of the process that downloads the tree
        lock                    lock for publishing, leasing and evicting
        trash/                  trees that are being deleted

One rename publishes a tree and one rename removes it. A tree's hard links keep its bytes when a
blob's name is deleted, so no lock but that of a download is held for longer than a rename takes.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt import codec
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.trees import measure_folder, remove_tree
from prefect_bt.host.job_lock import is_free, is_job_alive, try_lock
from prefect_bt.host.writeback import sync_folder
from prefect_bt.weights.manifest import ManifestSummary, WeightsManifest, load_manifest
from prefect_bt.weights.sources.file_listing import SHA256, quote

_STORED_SECONDS: Final = 3600.0
"""Seconds after which a tree's next use is recorded in the store, where its copy is checked."""
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class CachedTree:
    """A published source. `last_used` is in epoch seconds."""

    name: str
    path: Path
    summary: ManifestSummary
    last_used: float

    @property
    def files_folder(self) -> Path:
        """Return the folder that nodes mount."""
        return self.path / "files"

    @property
    def leases(self) -> tuple[str, ...]:
        """Return the ids of the jobs that lease the tree and have a living process here."""
        jobs, state_dir = find_paths(self.path, "leases/*"), self.path.parents[2]
        return tuple(job.name for job in jobs if is_job_alive(state_dir, job.name))

    def is_stored(self, url: str) -> bool:
        """Return whether the store at `url` was seen to have a copy within the last hour."""
        with suppress(OSError):
            age = time.time() - (self.path / "stored").stat().st_mtime
            return age < _STORED_SECONDS and (self.path / "stored").read_bytes() == url.encode()
        return False

    def mark_stored(self, url: str) -> None:
        """Record that the store has a copy, unless the tree was evicted meanwhile."""
        with suppress(FileNotFoundError):
            (self.path / "stored").write_text(url)

    def read_manifest(self) -> WeightsManifest:
        """Raise ValueError, KeyError, TypeError or OSError when it cannot be read."""
        return load_manifest((self.path / "manifest.json").read_bytes())

    def find_manifest(self) -> WeightsManifest | None:
        """Return the manifest; None when it cannot be read."""
        with suppress(*_UNREADABLE):
            return self.read_manifest()
        return None


class Leftover(NamedTuple):
    """An unfinished download or deletion. Deleting it frees `bytes`; times are epoch seconds."""

    path: Path
    bytes: int
    modified_at: float


class NodeCache:
    """`budget` in bytes, None for no limit. Safe with many processes at once."""

    def __init__(self, root: Path, budget: int | None = None) -> None:
        self.root, self.budget = root.absolute(), budget

    # Digests and revisions come from servers, so a path in their place must not leave the cache.

    def blob_path(self, sha256: str) -> Path:
        """Raise ValueError for text that is not a SHA-256."""
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"not a SHA-256: {quote(sha256)}")
        return Path(f"{self.root}/blobs/{sha256[:2]}/{sha256}")

    def _entry_path(self, folder: str, name: str) -> Path:
        """Raise ValueError for a name of more than one component."""
        if "/" in name or "\0" in name or name in {"", ".", ".."}:
            raise ValueError(f"not a name in the node cache: {quote(name)}")
        return self.root / folder / name

    tree_path = partialmethod(_entry_path, "trees")
    staging_path = partialmethod(_entry_path, "fills")
    partial_path = partialmethod(_entry_path, "parts")
    index_path = partialmethod(_entry_path, "index")

    def list_trees(self) -> list[CachedTree]:
        """Return the published trees, the least recently used first."""
        found = (self.find_tree(path.name) for path in find_paths(self.root, "trees/*"))
        return sorted(filter(None, found), key=lambda tree: (tree.last_used, tree.name))

    def find_tree(self, name: str) -> CachedTree | None:
        """Return the tree; None when it is not published or cannot be read."""
        try:
            path = self.tree_path(name)
            summary = codec.loads(ManifestSummary, (path / "summary.json").read_bytes())
            return CachedTree(name, path, summary, (path / "used").stat().st_mtime)
        except _UNREADABLE:
            return None

    def acquire_tree(self, name: str, *, holder: str = "") -> CachedTree | None:
        """Find a tree, record its use and lease it to the job `holder`. Return None without one."""
        with suppress(FileNotFoundError), self._locked():
            _record_use(self.tree_path(name), holder)
        return self.find_tree(name)

    def publish(self, staged: Path, name: str, *, holder: str = "") -> CachedTree:
        """Rename a complete, synced tree whose download the caller has locked."""
        _record_use(staged, holder)
        target = self.tree_path(name)
        ensure_private_folder(target.parent)
        with self._locked():
            if target.exists():  # an unreadable tree
                self._discard(target)
            staged.rename(target)
            sync_folder(target.parent)
            tree = self.find_tree(name)  # before an eviction
        if tree is None:
            raise FileNotFoundError(f"{str(target)!r} became unreadable as it was published")
        return tree

    def unmark_stored(self, name: str) -> None:
        """Record that no store has a copy of the tree, so that the next mirror stores it again."""
        with suppress(ValueError):  # a name that no tree can have
            (self.tree_path(name) / "stored").unlink(missing_ok=True)

    def evict(self, name: str) -> int:
        """Delete a tree without living jobs and its unshared blobs. Return the bytes freed."""
        with self._locked():
            tree = self.find_tree(name)
            if tree is None or tree.leases:
                return 0
            digests = _list_digests([tree])
            trash = self._move_to_trash(tree.path)
            freed = self._delete_blobs(digests - _list_digests(self.list_trees()))
        remove_tree(trash)
        return freed

    def unpublish(self, name: str) -> tuple[str, ...]:
        """Remove a tree but keep its blobs. Return the living jobs that lease it: then it stays."""
        with self._locked():
            tree = self.find_tree(name)
            jobs = tree.leases if tree else ()
            if tree and not jobs:
                self._discard(tree.path)
        return jobs

    def has_blob(self, sha256: str, size: int) -> bool:
        try:
            return self.blob_path(sha256).stat().st_size == size
        except (OSError, ValueError):
            return False

    def usage(self) -> int:
        """Return the allocated bytes of all blobs and partial files."""
        files = (*self._iter_files("blobs/*/*"), *self._iter_files("parts/*/*"))
        return sum(facts.st_blocks * 512 for _, facts in files)

    def sweep(self, *, older_than: float) -> int:
        """Delete blobs without a tree, and downloads, of this age. Return the bytes freed."""
        for path in find_paths(self.root, "trash/*"):
            remove_tree(path)
        stale = self.list_leftovers(older_than=older_than)
        freed = sum(self.delete_leftover(one.path, older_than=older_than) for one in stale)
        named, before = _list_digests(self.list_trees()), time.time() - older_than
        blobs = self._iter_files("blobs/*/*")
        old = {path.name for path, facts in blobs if facts.st_ctime < before}
        return freed + self._delete_blobs(old - named)

    def list_leftovers(self, *, older_than: float = 0.0) -> list[Leftover]:
        """Return unfinished downloads and deletions without a change for `older_than` seconds."""
        found: list[Leftover] = []
        for folder in ("fills", "parts", "trash"):
            for path in find_paths(self.root, f"{folder}/*"):
                with suppress(FileNotFoundError):
                    found.append(Leftover(path, *measure_folder(path)))
        return [one for one in found if one.modified_at < time.time() - older_than]

    def is_in_work(self, path: Path) -> bool:
        """Return whether a process works on this unfinished download."""
        return not is_free(self._work_lock(path))

    def delete_leftover(self, path: Path, *, older_than: float) -> int:
        """Delete a leftover unless a process works on it or changed it. Return the bytes freed."""
        with suppress(FileNotFoundError):
            size, modified_at = measure_folder(path)  # first, because a new lock is a change
            if modified_at < time.time() - older_than:
                with _hold_lock(self._work_lock(path)) as is_locked:
                    if is_locked:
                        self._discard(path)
                        return size
        return 0

    def list_stale_leases(self) -> list[Path]:
        """Return the leases, named by job, of jobs without a process here. They protect nothing."""
        leases, state_dir = find_paths(self.root, "trees/*/leases/*"), self.root.parent
        return [lease for lease in leases if not is_job_alive(state_dir, lease.name)]

    def _iter_files(self, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
        for path in find_paths(self.root, pattern):
            with suppress(FileNotFoundError):
                yield path, path.stat()

    def _delete_blobs(self, digests: Iterable[str]) -> int:
        freed = 0
        for digest in digests:
            with suppress(OSError, ValueError):
                size = self.blob_path(digest).stat().st_size
                self.blob_path(digest).unlink()
                freed += size
        return freed

    def _discard(self, path: Path) -> None:
        remove_tree(self._move_to_trash(path))

    def _move_to_trash(self, path: Path) -> Path:
        os.utime(path)  # the time of the deletion
        trash = self.root / "trash" / f"{path.name}.{uuid.uuid4().hex[:8]}"
        trash.parent.mkdir(parents=True, exist_ok=True)
        return path.rename(trash)

    def try_lock_staging(self, name: str) -> AbstractContextManager[bool]:
        """Try to lock the download of a tree on this machine. Yield whether the lock is held."""
        lock = self._work_lock(self.staging_path(name))
        ensure_private_folder(lock.parent)
        return _hold_lock(lock)

    def _work_lock(self, path: Path) -> Path:
        """Return the file that a process locks while it works on this unfinished download."""
        is_tree = path.parent.name == "fills"
        return self.root / "locks" / path.name if is_tree else path / "lock"

    def _locked(self) -> AbstractContextManager[bool]:
        ensure_private_folder(self.root)
        return _hold_lock(self.root / "lock", wait=True)


@contextmanager
def _hold_lock(path: Path, *, wait: bool = False) -> Generator[bool]:
    """Hold the flock of a file. Yield whether it is held, and the file is still at `path`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if wait:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield wait or (try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat()))
    finally:
        os.close(descriptor)


def _record_use(tree: Path, holder: str) -> None:
    """Set the time of the last use to now, and lease the tree to the job `holder`."""
    (tree / "leases").mkdir(exist_ok=True)
    (tree / "used").touch()
    if holder:
        (tree / "leases" / holder).touch()


def _list_digests(trees: Iterable[CachedTree]) -> set[str]:
    manifests = (tree.find_manifest() for tree in trees)
    return {entry.sha256 for found in manifests if found for entry in found.entries}
