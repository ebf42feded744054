"""One source onto this machine: pinned, fetched once, verified, published, leased.

Safe to run again after any interruption, and from any number of processes and hosts: one of them
fetches, the others wait for what it gets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.progress import Phase, ProgressCallback, ProgressMeter
from prefect_bt.weights.cache.eviction import enforce_budget, ensure_disk_space
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.cache.staged_tree import StagingTree
from prefect_bt.weights.download.engine import (
    clone_from_source,
    download_files,
    link_from_store,
)
from prefect_bt.weights.download.errors import stopped_error, write_error
from prefect_bt.weights.download.open_file import DownloadContext
from prefect_bt.weights.download.readers import FallbackReader
from prefect_bt.weights.download.retry import LISTING_RETRY_DELAYS, call_with_retries
from prefect_bt.weights.manifest import WeightsManifest
from prefect_bt.weights.result import MirrorResult
from prefect_bt.weights.sources.file_listing import ListedFile, Listing
from prefect_bt.weights.sources.patterns import select_files
from prefect_bt.weights.sources.protocol import (
    STALL_TIMEOUT,
    Source,
    SourceRequest,
    SupportsRevision,
    TransientError,
    open_source,
)
from prefect_bt.weights.store_copy.copies import StoreMirror
from prefect_bt.weights.store_copy.shared_download import SharedDownload
from prefect_bt.weights.threads import StopSignal, run_interruptibly
from prefect_bt.weights.url_redaction import redact_url

_USE_RECORD_INTERVAL = 3600.0
"""Seconds between two notes of the use of the store's copy, from one machine."""
_POLL_INTERVAL = 0.1
"""Seconds between two looks at a tree that another process fills."""


def mirror_source(  # noqa: PLR0913 (what a run of a job knows)
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
    """The source's published tree, fetched unless it is here already.

    A branch is pinned to its commit on every call, so a moved branch is fetched anew; trees that
    are in use stay. WeightsError names the source and what to do.

    Args:
        plan: The source, its patterns and auth.
        cache: Where it is kept on this machine.
        secret: The value that `plan.secret` names.
        store: Where our copy for other hosts lies, and checkpoints (for bt://).
        revision: The one to have, as an earlier attempt of a job had it.
        holder: A job that needs the tree for as long as it lives.
        to_store: Whether the store gets a copy.
        stall: Seconds without a byte after which a connection is given up.
        tell: Called about twice a second with how far it is.
        stop: Set by another thread to give it up; what is here is kept.
    """
    request = SourceRequest(_pin_source(plan, revision), secret, store, stall_timeout)
    meter = ProgressMeter(redact_url(plan.source), on_progress)
    if plan.source.startswith("bt://"):
        upload_to_store = False  # it lies there
    mirror = StoreMirror(store) if store is not None and upload_to_store else None
    flight = _MirrorRun(
        plan, cache, open_source(request), mirror, meter, stop or threading.Event(), lease_holder
    )
    with meter.report_periodically():
        try:
            return flight.run(revision)
        except OSError as error:
            raise write_error(plan.source, error) from error
        except TransientError as error:
            if flight.stop.is_set():
                raise stopped_error(plan.source) from error
            raise


@dataclass
class _MirrorRun:
    """One call. The store's copy is for others: no fault of it goes further than a note."""

    plan: WeightsPlan
    cache: NodeCache
    source: Source
    mirror: StoreMirror | None
    meter: ProgressMeter
    stop: threading.Event
    lease_holder: str

    def run(self, pin: str) -> MirrorResult:
        began = time.monotonic()
        pinned = pin or self.source.pinned_revision or self._resolve_revision()
        tree = self._cached_tree(weights_tree_name(self.plan.key, pinned)) if pinned else None
        if tree is not None:
            return self._cache_hit(tree, began)
        listing, origins = self._resolve(pin)
        name = weights_tree_name(self.plan.key, listing.revision)
        tree = self._cached_tree(name)
        if tree is not None:
            return self._cache_hit(tree, began)
        tree = self._ensure_tree(name, listing, origins)
        enforce_budget(self.cache, self.mirror, keep=name)
        done = self._finish(tree, began)
        return replace(
            done,
            fetched_bytes=origins.fetched_bytes,
            store_bytes=origins.store_bytes,
            cache_hit=False,
        )

    def _cache_hit(self, tree: CachedTree, started_at: float) -> MirrorResult:
        with self.cache.try_lock_staging(tree.name) as alone:
            if alone:  # else whoever filled it is about to
                self._ensure_in_store(tree)
        return self._finish(tree, started_at)

    def _cached_tree(self, name: str) -> CachedTree | None:
        return self.cache.acquire_tree(name, holder=self.lease_holder)

    def _finish(self, tree: CachedTree, started_at: float) -> MirrorResult:
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
            fetched_bytes=0,
            store_bytes=0,
            seconds=time.monotonic() - started_at,
            cache_hit=True,
        )

    # -- what there is ------------------------------------------------------------------------

    def _resolve(self, pin: str) -> tuple[Listing, FallbackReader]:
        """What to have, and where its bytes are."""
        pinned = pin or self.source.pinned_revision
        manifest = (
            self._find_store_manifest(weights_tree_name(self.plan.key, pinned)) if pinned else None
        )
        if manifest is not None:
            listing = _listing_from_manifest(manifest)
            return listing, FallbackReader(
                self.source, self.mirror, manifest, lambda: self._list_upstream(pinned)
            )
        listing = self._list_upstream(pin)
        manifest = self._find_store_manifest(weights_tree_name(self.plan.key, listing.revision))
        listed = {file.path: file for file in listing.files}
        origins = FallbackReader(self.source, self.mirror, manifest, upstream_files=listed)
        return _listing_from_manifest(manifest) if manifest else listing, origins

    def _list_upstream(self, pin: str) -> Listing:
        plan = self.plan
        listing = self._list_source(StopSignal(self.stop))
        if pin and listing.revision != pin:
            raise WeightsError(
                f"{redact_url(plan.source)} is another than the job began with "
                f"({listing.revision[:12]} "
                f"instead of {pin[:12]}), and what it began with is neither on this machine nor "
                "in the store any more.",
                source=plan.source,
                next_step="Push a new job, which takes what is there now.",
            )
        return Listing(listing.source, listing.revision, tuple(select_files(plan, listing)))

    def _resolve_revision(self) -> str:
        """What a listing would be of, where that is known without one: a hit asks for no more."""
        if not isinstance(self.source, SupportsRevision):
            return ""
        ask, stop = self.source.resolve_revision, StopSignal(self.stop)
        found = run_interruptibly(
            lambda: call_with_retries(ask, LISTING_RETRY_DELAYS, stop, self.meter.set_note), stop
        )
        return found or ""

    def _list_source(self, stop: StopSignal) -> Listing:
        """Aside: some listings can be interrupted by nothing but the end of the process."""
        ask = self.source.list_files
        found = run_interruptibly(
            lambda: call_with_retries(ask, LISTING_RETRY_DELAYS, stop, self.meter.set_note), stop
        )
        if found is None:
            raise stopped_error(self.plan.source)
        return found

    def _find_store_manifest(self, name: str) -> WeightsManifest | None:
        if self.mirror is None:
            return None
        try:
            return self.mirror.find_manifest(name)
        except StoreError as error:
            self._note_store_error(error)
            return None

    # -- filling ------------------------------------------------------------------------------

    def _ensure_tree(self, name: str, listing: Listing, origins: FallbackReader) -> CachedTree:
        """The tree, by this process or by another one of this machine."""
        noted = False
        while not self.stop.is_set():
            with self.cache.try_lock_staging(name) as alone:
                tree = self._cached_tree(name)
                if tree is None and alone:
                    tree = self._download(name, listing, origins)
            if tree is not None:
                return tree
            if not noted:
                self.meter.enter_phase(Phase.WAITING)
                self.meter.set_note("another process of this machine fetches it")
                noted = True
            self.stop.wait(_POLL_INTERVAL)
        raise stopped_error(self.plan.source)

    def _download(self, name: str, listing: Listing, origins: FallbackReader) -> CachedTree:
        if self.mirror is None:
            return self._stage_and_publish(listing, origins)
        if origins.manifest is not None:
            tree = self._stage_and_publish(listing, origins)
            if origins.is_store_incomplete:  # made good from upstream
                self._ensure_in_store(tree)
            else:
                tree.mark_stored(self.mirror.store.url)
                self._record_use(tree)
            return tree
        tree = self._stage_and_publish(listing, origins)
        self._ensure_in_store(tree)
        return tree

    def _stage_and_publish(self, listing: Listing, reader: FallbackReader) -> CachedTree:
        staging = StagingTree(self.cache, self.plan.source, self.plan.key, listing)
        try:
            with self._share(staging, reader) as share:
                context = self._fill(staging, reader, share)
            self._check_unchanged(context)
            self.meter.enter_phase(Phase.PUBLISHING)
            return staging.publish(listing.files, holder=self.lease_holder)
        finally:
            staging.close()

    def _share(
        self, staging: StagingTree, reader: FallbackReader
    ) -> AbstractContextManager[SharedDownload | None]:
        """Divide the download among hosts, if the store has no copy yet."""
        if self.mirror is None or reader.manifest or not self.source.detects_changes:
            return nullcontext()
        share = SharedDownload(
            self.mirror,
            staging.name,
            staging.listing.files,
            file_path=lambda path: staging.files / path,
            stop=self.stop,
            on_note=self.meter.set_note,
        )
        reader.stored_digests = share.stored
        return share

    def _fill(
        self, staging: StagingTree, reader: FallbackReader, share: SharedDownload | None
    ) -> DownloadContext:
        context = DownloadContext(
            staging,
            reader,
            self.meter,
            StopSignal(self.stop),
            share.add_finished if share else lambda _path, _sha256: None,
        )
        if share:
            share.find_stored()
        missing = self._link_cached_files(context, staging.listing.files)
        ensure_disk_space(staging, missing, self.mirror, self.meter.set_note)
        self.meter.enter_phase(Phase.TRANSFERRING)
        missing = clone_from_source(context, missing)
        batches = share.iter_batches(missing) if share else iter([missing])
        download_files(context, (link_from_store(context, batch) for batch in batches))
        return context

    def _link_cached_files(
        self, fetching: DownloadContext, files: Sequence[ListedFile]
    ) -> list[ListedFile]:
        """What has to be read; what is here, or lies in a store of this disk, is linked."""
        fill, meter = fetching.staging, self.meter
        meter.set_totals(items=len(files), size=sum(file.size or 0 for file in files))
        missing: list[ListedFile] = []
        for file in files:
            fetching.raise_if_stopped()
            if fill.has(file) or fill.link_cached(file):
                meter.add_present(file.size or 0, items=1)
            else:
                missing.append(file)
        return link_from_store(fetching, missing)

    def _check_unchanged(self, fetching: DownloadContext) -> None:
        """Of a source that cannot tell while it is read: whether it is still the same."""
        source, fill = self.source, fetching.staging
        if source.detects_changes or fetching.reader.manifest is not None:
            return
        if self._list_source(fetching.stop).revision != fill.listing.revision:
            fill.drop()
            raise WeightsError(
                f"{fetching.source} changed while it was copied.",
                source=fill.source,
                next_step="Push again when nothing writes there.",
            )

    # -- the store's copy ---------------------------------------------------------------------

    def _ensure_in_store(self, tree: CachedTree) -> None:
        """The store has it too, afterwards; asked once a tree, and once an hour of use."""
        if self.mirror is None or (
            tree.is_stored(self.mirror.store.url) and self._is_still_in_store(tree)
        ):
            return
        self.meter.enter_phase(Phase.STORING)
        try:
            manifest = tree.read_manifest()
            paths = {entry.sha256: tree.files_folder / entry.path for entry in manifest.entries}
            self.meter.set_totals(items=len(manifest.entries), size=manifest.bytes)
            self.mirror.publish(
                manifest, paths.__getitem__, on_bytes=self.meter.add_transferred, stop=self.stop
            )
            tree.mark_stored(self.mirror.store.url)
        except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
            self._note_store_error(error)

    def _is_still_in_store(self, tree: CachedTree) -> bool:
        """Whether the store has the copy that it was given, as far as was looked lately."""
        if not _is_use_record_due(tree):
            return True
        if self._find_store_manifest(tree.name) is None:
            tree.unmark_stored()
            return False
        self._record_use(tree)
        return True

    def _record_use(self, tree: CachedTree) -> None:
        """So that the store's copy does not count as unused (`prune --store`)."""
        assert self.mirror is not None
        with suppress(StoreError):
            self.mirror.record_use(tree.name)

    def _note_store_error(self, error: Exception) -> None:
        self.meter.set_note(f"the store's copy could not be used: {error}")


def _is_use_record_due(tree: CachedTree) -> bool:
    """Whether its use was not noted in the store lately; now it counts as noted."""
    noted = tree.path / "stored"
    with suppress(OSError):
        if time.time() - noted.stat().st_mtime > _USE_RECORD_INTERVAL:
            os.utime(noted)
            return True
    return False


def _pin_source(plan: WeightsPlan, revision: str) -> WeightsPlan:
    """Asked for by its commit, where a source can be: a branch may have moved since."""
    if not revision or not plan.source.startswith("hf://"):
        return plan
    return replace(plan, source=f"{plan.source.partition('@')[0]}@{revision}")


def _listing_from_manifest(manifest: WeightsManifest) -> Listing:
    files = (ListedFile(e.path, e.size, sha256=e.sha256) for e in manifest.entries)
    return Listing(manifest.source, manifest.revision, tuple(files))
