"""The node cache: what this machine keeps of sources, each content once, ready to be mounted.

    <state dir>/weights/
        blobs/<xx>/<sha256>     a content; nobody writes to it any more
        trees/<name>/           one source at one revision: <key>-<revision>
            files/              hard links to blobs: what nodes mount
            manifest.json  summary.json
            used                its time is that of the last use
            stored              URLs of the stores that have a copy
            leases/<job id>     a job that needs it
        fills/<name>/           a tree that is not whole yet (staged_tree.py)
        parts/<id>/             a large file that is not whole yet (partial_file.py)
        index/<place>           which content a source's file had (digest_index.py)
        locks/<name>  lock      one filler a tree; leases against evictions
        trash/                  on its way out

A tree appears by one rename and goes by one rename. Hard links keep a tree's bytes, whoever removes
a blob's own name meanwhile; so nothing here has to be locked for longer than a rename takes, but
the filling of one and the same tree.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.job_lock import OPEN_FLAGS, is_owned, try_lock
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.weights.cache.disk_usage import (
    allocated_bytes,
    changed_at,
    last_modified,
    reclaimable_bytes,
)
from prefect_bt.weights.manifest import (
    ManifestSummary,
    WeightsManifest,
    load_manifest,
    load_summary,
)
from prefect_bt.weights.sources.file_listing import SHA256, quote

LINK_UNSUPPORTED_ERRNOS: Final = frozenset(
    {errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP}
)
"""Of a file system that has no hard links, or no more of this file."""
_TREES: Final = "trees"


@dataclass(frozen=True)
class CachedTree:
    """A published source. `last_used` in epoch seconds; `leases` are ids of jobs that live."""

    name: str
    path: Path
    summary: ManifestSummary
    last_used: float
    leases: tuple[str, ...] = ()

    @property
    def files_folder(self) -> Path:
        """What nodes mount."""
        return self.path / "files"

    def is_stored(self, url: str) -> bool:
        """Whether the store at `url` was given a copy."""
        try:
            return url in (self.path / "stored").read_text().splitlines()
        except OSError:
            return False

    def mark_stored(self, url: str) -> None:
        """Of no use to a tree that was evicted in this moment."""
        with suppress(FileNotFoundError), (self.path / "stored").open("a") as writer:
            writer.write(f"{url}\n")

    def unmark_stored(self) -> None:
        """No store has a copy any more, as far as is known."""
        (self.path / "stored").unlink(missing_ok=True)

    def read_manifest(self) -> WeightsManifest:
        """Raise ValueError, KeyError, TypeError or OSError when it cannot be read."""
        return load_manifest((self.path / "manifest.json").read_bytes())

    def find_manifest(self) -> WeightsManifest | None:
        """Return the manifest; None when it cannot be read."""
        with suppress(ValueError, KeyError, TypeError, OSError):
            return self.read_manifest()
        return None


class NodeCache:
    """`budget` in bytes; None: as much as the disk has. Safe with many processes at once."""

    def __init__(self, root: Path, budget: int | None = None) -> None:
        self.root, self.budget = root.absolute(), budget

    # -- places -------------------------------------------------------------------------------

    # Digests and revisions come from servers: one that is a path must not lead out of the cache.

    def blob_path(self, sha256: str) -> Path:
        """ValueError for what is no SHA-256."""
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"not a SHA-256: {quote(sha256)}")
        return self.root / "blobs" / sha256[:2] / sha256

    def staging_path(self, name: str) -> Path:
        return self._entry_path("fills", name)

    def partial_path(self, part_id: str) -> Path:
        return self._entry_path("parts", part_id)

    def index_path(self, place: str) -> Path:
        return self._entry_path("index", place)

    def tree_path(self, name: str) -> Path:
        return self._entry_path(_TREES, name)

    def _entry_path(self, folder: str, name: str) -> Path:
        """ValueError for a name of more than one component."""
        if "/" in name or "\0" in name or name in {"", ".", ".."}:
            raise ValueError(f"not a name in the node cache: {quote(name)}")
        return self.root / folder / name

    # -- trees --------------------------------------------------------------------------------

    def list_trees(self) -> list[CachedTree]:
        """All that are published, the least recently used first."""
        found = [self.find_tree(name) for name in _names(self.root / _TREES)]
        return sorted(
            (tree for tree in found if tree), key=lambda tree: (tree.last_used, tree.name)
        )

    def find_tree(self, name: str) -> CachedTree | None:
        tree = self._read(name)
        return replace(tree, leases=self.list_leases(name)) if tree else None

    def acquire_tree(self, name: str, *, holder: str = "") -> CachedTree | None:
        """The tree, used now, and leased to the job `holder`; None when it is not published.

        Its leases are not looked up: a hit costs the same however many jobs had it.
        """
        path = self.tree_path(name)
        if not path.is_dir():
            return None
        with self._exclusive_lock():
            try:
                os.utime(path / "used")
                if holder:
                    (path / "leases").mkdir(exist_ok=True)
                    (path / "leases" / holder).touch()
            except FileNotFoundError:
                return None
        return self._read(name)

    def publish(self, staged: Path, name: str, *, holder: str = "") -> CachedTree:
        """Rename a fill that is whole and synced; it may have been published meanwhile."""
        (staged / "leases").mkdir(exist_ok=True)
        (staged / "used").touch()
        if holder:
            (staged / "leases" / holder).touch()
        target = self.tree_path(name)
        ensure_private_folder(target.parent)
        with self._exclusive_lock():
            if target.exists() and self._read(name):
                self._discard(staged)
            else:
                if target.exists():  # somebody broke it
                    self._discard(target)
                staged.rename(target)
                _sync_folder(target.parent)
            tree = self._read(name)  # before somebody may evict it
        if tree is None:
            raise FileNotFoundError(f"{str(target)!r} was broken as soon as it was there")
        return tree

    def list_leases(self, name: str) -> tuple[str, ...]:
        """Ids of the jobs that need the tree and have a living process on this machine."""
        holders = _names(self.tree_path(name) / "leases")
        return tuple(job for job in holders if is_job_alive(self.root.parent, job))

    def evict(self, name: str) -> int:
        """Remove a tree that no living job needs, and the blobs only it had; bytes freed."""
        with self._exclusive_lock():
            tree = self.find_tree(name)
            if tree is None or tree.leases:
                return 0
            digests = _digests(tree.path)
            gone = self._move_to_trash(tree.path)
            freed = self._delete_unreferenced(digests)
        remove_tree(gone)
        return freed

    def unpublish(self, name: str) -> tuple[str, ...]:
        """Publish the tree no more; its contents stay. Ids of living jobs that keep it there."""
        with self._exclusive_lock():
            holders = self.list_leases(name)
            if not holders and self.tree_path(name).exists():
                self._discard(self.tree_path(name))
        return holders

    def _read(self, name: str) -> CachedTree | None:
        try:
            path = self.tree_path(name)
            summary = load_summary((path / "summary.json").read_bytes())
            used = (path / "used").stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return CachedTree(name, path, summary, used)

    # -- blobs --------------------------------------------------------------------------------

    def has_blob(self, sha256: str, size: int) -> bool:
        try:
            return self.blob_path(sha256).stat().st_size == size
        except (OSError, ValueError):
            return False

    def link_blob(self, file: Path, sha256: str) -> None:
        """The file is this blob too, where it can have another name. FileExistsError."""
        blob = self.blob_path(sha256)
        try:
            try:
                os.link(file, blob)
            except FileNotFoundError:
                blob.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, blob)
        except OSError as error:
            if error.errno not in LINK_UNSUPPORTED_ERRNOS:
                raise

    def usage(self) -> int:
        """Bytes of all blobs and of all that is on its way."""
        return sum(allocated_bytes(entry) for entry in self._iter_data_files())

    def sweep(self, *, older_than: float) -> int:
        """Remove what nobody will ask for again; bytes freed.

        Blobs that no tree names, and fills and parts that nobody works on and that are older than
        `older_than` seconds.
        """
        for path in find_paths(self.root / "trash", "*"):
            remove_tree(path)
        before = time.time() - older_than
        freed = sum(
            self.delete_abandoned(path, older_than=older_than) for path in self.list_unfinished()
        )
        named = {digest for tree in self.list_trees() for digest in _digests(tree.path)}
        loose = (
            blob.name
            for blob in find_paths(self.root / "blobs", "*/*")
            if blob.name not in named and changed_at(blob) < before
        )
        return freed + self._unlink(loose)

    def _delete_unreferenced(self, digests: Iterable[str]) -> int:
        named = {digest for tree in self.list_trees() for digest in _digests(tree.path)}
        return self._unlink(digest for digest in digests if digest not in named)

    def _unlink(self, digests: Iterable[str]) -> int:
        freed = 0
        for digest in digests:
            with suppress(OSError, ValueError):
                size = self.blob_path(digest).stat().st_size
                self.blob_path(digest).unlink()
                freed += size
        return freed

    def _iter_data_files(self) -> Generator[os.DirEntry[str]]:
        for folder in ("blobs", "parts"):
            for name in _names(self.root / folder):
                with suppress(FileNotFoundError), os.scandir(self.root / folder / name) as found:
                    yield from found

    # -- locks --------------------------------------------------------------------------------

    def staging_lock_path(self, fill: Path) -> Path:
        return self.root / "locks" / fill.name

    @contextmanager
    def try_lock_staging(self, name: str) -> Generator[bool]:
        """Whether this process alone fills the tree now, on this machine. Never waits."""
        path = self.staging_lock_path(self.staging_path(name))
        ensure_private_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield try_lock(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _exclusive_lock(self) -> Generator[None]:
        """Nobody takes a lease, evicts or publishes meanwhile."""
        ensure_private_folder(self.root)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # -- what was left behind -----------------------------------------------------------------

    def list_unfinished(self) -> list[Path]:
        """Fills and parts, whoever works on them."""
        folders = [self.root / "fills", self.root / "parts"]
        return [folder / name for folder in folders for name in _names(folder)]

    def is_abandoned(self, path: Path) -> bool:
        """Whether nobody works on this fill or part."""
        with _try_lock_file(self._work_lock(path), shared=True) as free:
            return free

    def delete_abandoned(self, path: Path, *, older_than: float) -> int:
        """Remove a fill or part that nobody works on and nobody did for so long; bytes freed."""
        with suppress(FileNotFoundError), _try_lock_file(self._work_lock(path)) as free:
            if free and last_modified(path) < time.time() - older_than:
                size = reclaimable_bytes(path)
                self._discard(path)
                return size
        return 0

    def _work_lock(self, path: Path) -> Path:
        return self.staging_lock_path(path) if path.parent.name == "fills" else path / "lock"

    def _discard(self, path: Path) -> None:
        remove_tree(self._move_to_trash(path))

    def _move_to_trash(self, path: Path) -> Path:
        gone = self.root / "trash" / f"{path.name}.{uuid.uuid4().hex[:8]}"
        gone.parent.mkdir(parents=True, exist_ok=True)
        return path.rename(gone)


def is_job_alive(state_dir: Path, job_id: str) -> bool:
    """Whether any process of the job lives on this machine: its owner, or a node."""
    if is_owned(state_dir, job_id):
        return True
    locks = find_paths(JobFolder(state_dir, job_id).path, "attempt-*/rank-*/lock")
    return any(not _is_free(lock) for lock in locks)


def _is_free(lock: Path) -> bool:
    with _try_lock_file(lock, shared=True) as free:
        return free


@contextmanager
def _try_lock_file(lock: Path, *, shared: bool = False) -> Generator[bool]:
    """Whether nobody has it; then it is ours meanwhile, if there is such a file."""
    try:
        descriptor = os.open(lock, OPEN_FLAGS)
    except FileNotFoundError:
        yield True
        return
    try:
        yield try_lock(descriptor, shared=shared)
    finally:
        os.close(descriptor)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _digests(tree: Path) -> list[str]:
    try:
        manifest = load_manifest((tree / "manifest.json").read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [entry.sha256 for entry in manifest.entries]


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
