"""Mirror a source to this machine: pin its revision, download it once, verify, publish, lease.

A mirror may be repeated after any interruption, and run in several processes and hosts at once.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.hub_uri import pin_hub_uri
from prefect_bt.text.progress import Phase, ProgressCallback, ProgressMeter, format_items
from prefect_bt.text.quantities import format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.eviction import enforce_budget, ensure_disk_space
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download.downloader import Download
from prefect_bt.weights.download.readers import FallbackReader
from prefect_bt.weights.sources.file_listing import Listing
from prefect_bt.weights.sources.patterns import select_files
from prefect_bt.weights.sources.protocol import (
    STALL_TIMEOUT,
    Source,
    SourceRequest,
    TransientError,
    open_source,
    source_error,
)
from prefect_bt.weights.store_copy.copies import StoreMirror
from prefect_bt.weights.store_copy.shared_download import SharedDownload
from prefect_bt.weights.worker_threads import (
    RETRY_DELAYS,
    StopSignal,
    call_with_retries,
    run_workers,
)

T = TypeVar("T")
_POLL_INTERVAL: Final = 0.1
"""Seconds between two attempts to lock a tree that another process downloads."""
_NO_LINKS: Final = (
    "the node cache needs a file system with hard links",
    "Set PREFECT_BT_STATE_DIR to a disk that has them",
)
_WRITE_ERRORS: Final = {
    errno.ENOSPC: ("the disk is full", "Free space, or set PREFECT_BT_STATE_DIR to another disk"),
    errno.ENAMETOOLONG: ("a path is too long", "Set PREFECT_BT_STATE_DIR to a shorter path"),
    **dict.fromkeys((errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV), _NO_LINKS),
}
"""A sentence and its remedy by error number."""


@dataclass(frozen=True)
class MirrorResult:
    """The published tree of a source. `folder` has the files, read-only; sizes are in bytes."""

    name: str
    source: str
    revision: str
    folder: Path
    files: int
    bytes: int
    fetched_bytes: int
    store_bytes: int
    seconds: float
    cache_hit: bool
    """Whether the tree was on this machine before."""


def format_result(result: MirrorResult) -> str:
    """`10 files, 4.0 GB in 13.1 s: 3.0 GB from the source (310.0 MB/s), 1.0 GB from the store`"""
    size = f"{format_items(result.files)}, {format_size(result.bytes)}"
    if result.cache_hit:
        return f"{size}: already on this machine"
    rate = format_size(result.fetched_bytes / max(result.seconds, 0.001))
    parts = [
        (result.fetched_bytes, f"from the source ({rate}/s)"),
        (result.store_bytes, "from the store"),
        (result.bytes - result.fetched_bytes - result.store_bytes, "already on this machine"),
    ]
    listed = ", ".join(f"{format_size(count)} {origin}" for count, origin in parts if count > 0)
    return f"{size} in {result.seconds:.1f} s: {listed or 'nothing to download'}"


def mirror_source(  # noqa: PLR0913 (options of one call)
    plan: WeightsPlan,
    *,
    cache: NodeCache,
    secret: str | None = None,
    store: Store | None = None,
    revision: str = "",
    lease_holder: str = "",
    upload_to_store: bool = True,
    stall_timeout: float = STALL_TIMEOUT,
    on_progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> MirrorResult:
    """Return the published tree of a source; download it unless it is on this machine.

    A branch is resolved to its commit on every call without `revision`. The job `lease_holder`
    needs the tree while it lives. `secret` is the value of the secret `plan.secret`. `store` has
    the copy for other hosts, unless `upload_to_store` is false, and the checkpoints of bt://.
    All bytes but the last are kept when `stop` is set. WeightsError names the source and the cure.
    """
    pinned_plan = plan
    if revision and plan.source.startswith("hf://"):  # the branch may have moved
        pinned_plan = replace(plan, source=pin_hub_uri(plan.source, revision))
    source = open_source(SourceRequest(pinned_plan, secret, store, stall_timeout))
    meter, stop = ProgressMeter(redact_url(plan.source), on_progress), stop or threading.Event()
    has_copy = upload_to_store and not plan.source.startswith("bt://")
    mirror = StoreMirror(store) if store is not None and has_copy else None
    with meter.report_periodically():
        try:
            return _MirrorRun(plan, cache, source, mirror, meter, stop, lease_holder).run(revision)
        except OSError as error:
            raise _write_error(plan.source, error) from error
        except TransientError as error:
            if stop.is_set():
                raise _stopped_error(plan.source) from error
            raise


@dataclass
class _MirrorRun:
    """One call. Errors of the store's copy become notes."""

    plan: WeightsPlan
    cache: NodeCache
    source: Source
    mirror: StoreMirror | None
    meter: ProgressMeter
    stop: threading.Event
    lease_holder: str
    _started_at: float = field(default_factory=time.monotonic)

    def run(self, pin: str) -> MirrorResult:
        revision, listing = pin or self._ask(self.source.resolve_revision), None
        if not revision:
            listing = self._list_upstream()
            revision = listing.revision
        name = weights_tree_name(self.plan.key, revision)
        if tree := self.cache.acquire_tree(name, holder=self.lease_holder):
            with self.cache.try_lock_staging(name) as locked:
                if locked:  # else the process that downloaded it completes the store's copy
                    self._ensure_in_store(tree)
            return self._finish(tree, None)
        listing, reader = self._choose_reader(name, revision, listing)
        tree = self._ensure_tree(name, listing, reader)
        enforce_budget(self.cache, self.mirror, keep=name)
        return self._finish(tree, reader)

    def _finish(self, tree: CachedTree, reader: FallbackReader | None) -> MirrorResult:
        facts = tree.summary
        self.meter.set_totals(items=facts.files, size=facts.bytes)
        self.meter.add_present(facts.bytes, items=facts.files)
        self.meter.enter_phase(Phase.DONE)
        return MirrorResult(
            name=tree.name,
            source=facts.source,
            revision=facts.revision,
            folder=tree.files_folder,
            files=facts.files,
            bytes=facts.bytes,
            fetched_bytes=reader.fetched_bytes if reader else 0,
            store_bytes=reader.store_bytes if reader else 0,
            seconds=time.monotonic() - self._started_at,
            cache_hit=reader is None,
        )

    # -- listing ------------------------------------------------------------------------------

    def _choose_reader(
        self, name: str, revision: str, listing: Listing | None
    ) -> tuple[Listing, FallbackReader]:
        """Return the files to mirror and the reader of their bytes."""

        def list_upstream() -> Listing:
            return listing or self._list_upstream(revision)

        manifest = None
        try:
            manifest = self.mirror.find_manifest(name) if self.mirror else None
        except StoreError as error:
            self._note_store_error(error)
        if manifest is None:
            return list_upstream(), FallbackReader(self.source, self.mirror)
        stored = {entry.sha256 for entry in manifest.entries}
        reader = FallbackReader(self.source, self.mirror, list_upstream, stored)
        return Listing(manifest.revision, manifest.files), reader

    def _list_upstream(self, pin: str = "") -> Listing:
        plan, listing = self.plan, self._ask(self.source.list_files)
        if pin and listing.revision != pin:
            what = (
                f"now has revision {listing.revision[:12]}. The job uses {pin[:12]}, "
                "which is neither on this machine nor in the store"
            )
            hint = "Push a new job, which uses the present revision."
            raise source_error(plan.source, what, hint)
        return Listing(listing.revision, tuple(select_files(plan, listing)))

    def _ask(self, call: Callable[[], T]) -> T:
        """Ask the source, in a thread because a request has no other way to be interrupted."""
        stop, note, found = StopSignal(self.stop), self.meter.set_note, list[T]()

        def ask() -> bool:
            found.append(call_with_retries(call, RETRY_DELAYS, stop, TransientError, note))
            return False

        run_workers(1, ask, stop)
        if not found:
            raise _stopped_error(self.plan.source)
        return found[0]

    # -- download -----------------------------------------------------------------------------

    def _ensure_tree(self, name: str, listing: Listing, reader: FallbackReader) -> CachedTree:
        """Return the tree once this process or another one of this machine has downloaded it."""
        is_waiting = False
        while not self.stop.is_set():
            with self.cache.try_lock_staging(name) as locked:
                if tree := self.cache.acquire_tree(name, holder=self.lease_holder):
                    return tree
                if locked:
                    tree = self._stage_and_publish(listing, reader)
                    self._ensure_in_store(tree, has_lost_blobs=reader.is_store_incomplete)
                    return tree
            if not is_waiting:
                self.meter.enter_phase(Phase.WAITING)
                self.meter.set_note("another process of this machine downloads it")
                is_waiting = True
            self.stop.wait(_POLL_INTERVAL)
        raise _stopped_error(self.plan.source)

    def _stage_and_publish(self, listing: Listing, reader: FallbackReader) -> CachedTree:
        plan = self.plan
        with closing(StagingTree(self.cache, plan.source, plan.key, listing)) as staging:
            with self._share(staging, reader) as share:
                self._fill(staging, reader, share)
            is_checked = self.source.detects_changes or reader.list_upstream
            if not is_checked and self._ask(self.source.list_files).revision != listing.revision:
                remove_tree(staging.path)
                hint = "Push again when no process writes there."
                raise source_error(plan.source, "changed while it was copied", hint)
            self.meter.enter_phase(Phase.PUBLISHING)
            return staging.publish(holder=self.lease_holder)

    def _share(
        self, staging: StagingTree, reader: FallbackReader
    ) -> AbstractContextManager[SharedDownload | None]:
        """Divide the download among hosts, if the store has no copy yet."""
        if self.mirror is None or reader.list_upstream or not self.source.detects_changes:
            return nullcontext()
        name, files = staging.name, staging.listing.files
        file_path, note = staging.files.joinpath, self.meter.set_note
        share = SharedDownload(
            self.mirror, name, files, file_path=file_path, stop=self.stop, on_note=note
        )
        reader.stored = share.stored
        return share

    def _fill(
        self, staging: StagingTree, reader: FallbackReader, share: SharedDownload | None
    ) -> None:
        files, on_finished = staging.listing.files, share.add_finished if share else None
        self.meter.set_totals(items=len(files), size=sum(file.size or 0 for file in files))
        download = Download(staging, reader, self.meter, StopSignal(self.stop), on_finished)
        missing = download.link_present(files)
        if self.stop.is_set():
            raise _stopped_error(self.plan.source)
        ensure_disk_space(staging, missing, self.mirror, self.meter.set_note)
        self.meter.enter_phase(Phase.TRANSFERRING)
        batches = share.iter_batches(missing) if share else iter([missing])
        download.run(download.link_present(batch) for batch in batches)
        if self.stop.is_set():
            raise _stopped_error(self.plan.source)

    # -- the store's copy ---------------------------------------------------------------------

    def _ensure_in_store(self, tree: CachedTree, *, has_lost_blobs: bool = False) -> None:
        """Complete the store's copy, or record its use, unless that was done in the last hour."""
        mirror, meter = self.mirror, self.meter
        if mirror is None or tree.is_stored(mirror.store.url):
            return
        try:
            if has_lost_blobs or mirror.find_manifest(tree.name) is None:
                meter.enter_phase(Phase.STORING)
                manifest = tree.read_manifest()
                paths = {entry.sha256: tree.files_folder / entry.path for entry in manifest.entries}
                meter.set_totals(items=len(manifest.entries), size=manifest.bytes)
                sent = meter.add_transferred
                mirror.publish(manifest, paths.__getitem__, on_bytes=sent, stop=self.stop)
            else:
                mirror.record_use(tree.name)
            tree.mark_stored(mirror.store.url)
        except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
            self._note_store_error(error)

    def _note_store_error(self, error: Exception) -> None:
        self.meter.set_note(f"the store's copy cannot be used: {error}")


def _stopped_error(source: str) -> WeightsError:
    hint = "Downloaded files are kept for the next time."
    return source_error(source, "is not complete: the mirror was stopped", hint)


def _write_error(source: str, error: OSError) -> WeightsError:
    default = "the disk refused it", "Check the disk of PREFECT_BT_STATE_DIR"
    what, cure = _WRITE_ERRORS.get(error.errno or 0, default)
    hint = f"{cure}; downloaded files are kept."
    return source_error(source, f"could not be written: {what} ({error})", hint)
