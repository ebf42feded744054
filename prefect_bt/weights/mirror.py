"""One source onto this machine: pinned, fetched once, verified, published, leased.

Safe to run again after any interruption, and from any number of processes and hosts: one of them
fetches, the others wait for what it gets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from prefect_bt.contract import weights_tree
from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.objects.protocols import Store
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights.bringing import borrow, bring, unwritable
from prefect_bt.weights.cache import NodeCache, Tree
from prefect_bt.weights.choosing import choose
from prefect_bt.weights.claims import fly_alone
from prefect_bt.weights.crew import Stop, aside
from prefect_bt.weights.fetching import Fetching, check_stop, stopped
from prefect_bt.weights.filling import Fill
from prefect_bt.weights.listing import ListedFile, Listing
from prefect_bt.weights.manifest import Manifest
from prefect_bt.weights.origins import Origins
from prefect_bt.weights.progress import Meter, Phase, Tell
from prefect_bt.weights.retrying import LISTING_PAUSES, again
from prefect_bt.weights.room import keep_budget, make_room
from prefect_bt.weights.shared import StoreMirror
from prefect_bt.weights.source import (
    STALL_SECONDS,
    Interrupted,
    Source,
    SourceRequest,
    TellsRevision,
    open_source,
)
from prefect_bt.weights.telling import shown

_NOTED = 3600.0
"""Seconds between two notes of the use of the store's copy, from one machine."""
_LOOK = 0.1
"""Seconds between two looks at a tree that another process fills."""


@dataclass(frozen=True)
class Mirrored:
    """`folder` holds the files, read-only; sizes in bytes. `hit`: nothing had to be done."""

    name: str
    source: str
    revision: str
    folder: Path
    files: int
    bytes: int
    fetched: int
    from_store: int
    seconds: float
    hit: bool


def mirror_source(  # noqa: PLR0913 (what a run of a job knows)
    plan: WeightsPlan,
    *,
    cache: NodeCache,
    secret: str | None = None,
    store: Store | None = None,
    revision: str = "",
    holder: str = "",
    to_store: bool = True,
    stall: float = STALL_SECONDS,
    tell: Tell | None = None,
    stop: threading.Event | None = None,
) -> Mirrored:
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
    request = SourceRequest(_at(plan, revision), secret, store, stall)
    meter = Meter(plan.source, tell)
    if plan.source.startswith("bt://"):
        to_store = False  # it lies there
    mirror = StoreMirror(store) if store is not None and to_store else None
    flight = _Flight(
        plan, cache, open_source(request), mirror, meter, stop or threading.Event(), holder
    )
    with meter.running():
        try:
            return flight.run(revision)
        except OSError as error:
            raise unwritable(plan.source, error) from error
        except Interrupted as error:
            if flight.stop.is_set():
                raise stopped(plan.source) from error
            raise


@dataclass
class _Flight:
    """One call. The store's copy is for others: no fault of it goes further than a note."""

    plan: WeightsPlan
    cache: NodeCache
    source: Source
    mirror: StoreMirror | None
    meter: Meter
    stop: threading.Event
    holder: str

    def run(self, pin: str) -> Mirrored:
        began = time.monotonic()
        pinned = pin or self.source.fixed or self._revision_now()
        tree = self._here(weights_tree(self.plan.key, pinned)) if pinned else None
        if tree is not None:
            return self._hit(tree, began)
        listing, origins = self._list(pin)
        name = weights_tree(self.plan.key, listing.revision)
        tree = self._here(name)
        if tree is not None:
            return self._hit(tree, began)
        tree = self._filled(name, listing, origins)
        keep_budget(self.cache, self.mirror, keep=name)
        done = self._done(tree, began)
        return replace(done, fetched=origins.fetched, from_store=origins.from_store, hit=False)

    def _hit(self, tree: Tree, began: float) -> Mirrored:
        with self.cache.filling(tree.name) as alone:
            if alone:  # else whoever filled it is about to
                self._share(tree)
        return self._done(tree, began)

    def _here(self, name: str) -> Tree | None:
        return self.cache.use(name, holder=self.holder)

    def _done(self, tree: Tree, began: float) -> Mirrored:
        facts = tree.summary
        self.meter.expect(files=facts.files, size=facts.bytes)
        self.meter.here(facts.bytes, files=facts.files)
        self.meter.enter(Phase.DONE)
        return Mirrored(
            name=tree.name,
            source=facts.source,
            revision=facts.revision,
            folder=tree.files,
            files=facts.files,
            bytes=facts.bytes,
            fetched=0,
            from_store=0,
            seconds=time.monotonic() - began,
            hit=True,
        )

    # -- what there is ------------------------------------------------------------------------

    def _list(self, pin: str) -> tuple[Listing, Origins]:
        """What to have, and where its bytes are."""
        pinned = pin or self.source.fixed
        manifest = self._stored(weights_tree(self.plan.key, pinned)) if pinned else None
        if manifest is not None:
            listing = _listing_of(manifest)
            return listing, Origins(self.source, self.mirror, manifest, lambda: self._ask(pinned))
        listing = self._ask(pin)
        manifest = self._stored(weights_tree(self.plan.key, listing.revision))
        listed = {file.path: file for file in listing.files}
        origins = Origins(self.source, self.mirror, manifest, listed=listed)
        return _listing_of(manifest) if manifest else listing, origins

    def _ask(self, pin: str) -> Listing:
        plan = self.plan
        listing = self._look(Stop(self.stop))
        if pin and listing.revision != pin:
            raise WeightsError(
                f"{shown(plan.source)} is another than the job began with ({listing.revision[:12]} "
                f"instead of {pin[:12]}), and what it began with is neither on this machine nor "
                "in the store any more.",
                source=plan.source,
                next_step="Push a new job, which takes what is there now.",
            )
        return Listing(listing.source, listing.revision, tuple(choose(plan, listing)))

    def _revision_now(self) -> str:
        """What a listing would be of, where that is known without one: a hit asks for no more."""
        if not isinstance(self.source, TellsRevision):
            return ""
        ask, stop = self.source.revision, Stop(self.stop)
        found = aside(lambda: again(ask, LISTING_PAUSES, stop, self.meter.note), stop)
        return found or ""

    def _look(self, stop: Stop) -> Listing:
        """Aside: some listings can be interrupted by nothing but the end of the process."""
        ask = self.source.list
        found = aside(lambda: again(ask, LISTING_PAUSES, stop, self.meter.note), stop)
        if found is None:
            raise stopped(self.plan.source)
        return found

    def _stored(self, name: str) -> Manifest | None:
        if self.mirror is None:
            return None
        try:
            return self.mirror.manifest(name)
        except StoreError as error:
            self._unshared(error)
            return None

    # -- filling ------------------------------------------------------------------------------

    def _filled(self, name: str, listing: Listing, origins: Origins) -> Tree:
        """The tree, by this process or by another one of this machine."""
        noted = False
        while not self.stop.is_set():
            with self.cache.filling(name) as alone:
                tree = self._here(name)
                if tree is None and alone:
                    tree = self._fly(name, listing, origins)
            if tree is not None:
                return tree
            if not noted:
                self.meter.enter(Phase.WAITING)
                self.meter.note("another process of this machine fetches it")
                noted = True
            self.stop.wait(_LOOK)
        raise stopped(self.plan.source)

    def _fly(self, name: str, listing: Listing, origins: Origins) -> Tree:
        if self.mirror is None:
            return self._fill(listing, origins)
        if origins.manifest is not None:
            tree = self._fill(listing, origins)
            if origins.lost:  # made good from upstream
                self._share(tree)
            else:
                tree.mark_stored(self.mirror.store.url)
                self._note_use(tree)
            return tree
        with ExitStack() as held:
            try:
                manifest = held.enter_context(self._alone(name))
            except StoreError as error:
                self._unshared(error)
                manifest = None
            origins.manifest = manifest
            tree = self._fill(_listing_of(manifest) if manifest else listing, origins)
            self._share(tree)
            return tree

    def _alone(self, name: str) -> AbstractContextManager[Manifest | None]:
        """One host at a time."""
        assert self.mirror is not None
        asked = self.mirror.manifest
        return fly_alone(self.mirror.store, name, self.meter, lambda: asked(name), stop=self.stop)

    def _fill(self, listing: Listing, origins: Origins) -> Tree:
        fill = Fill(self.cache, self.plan.source, self.plan.key, listing)
        try:
            fetching = Fetching(fill, origins, self.meter, Stop(self.stop))
            missing = self._missing(fetching, listing.files)
            make_room(fetching, missing, self.mirror)
            self.meter.enter(Phase.FETCHING)
            bring(fetching, missing)
            self._check_still(fetching)
            self.meter.enter(Phase.PUBLISHING)
            return fill.publish(listing.files, holder=self.holder)
        finally:
            fill.close()

    def _missing(self, fetching: Fetching, files: Sequence[ListedFile]) -> list[ListedFile]:
        """What has to be read; what is here, or lies in a store of this disk, is linked."""
        fill, meter = fetching.fill, self.meter
        meter.expect(files=len(files), size=sum(file.size or 0 for file in files))
        missing: list[ListedFile] = []
        for file in files:
            check_stop(fetching)
            if fill.has(file) or fill.link_known(file):
                meter.here(file.size or 0, files=1)
            else:
                missing.append(file)
        return borrow(fetching, missing)

    def _check_still(self, fetching: Fetching) -> None:
        """Of a source that cannot tell while it is read: whether it is still the same."""
        source, fill = self.source, fetching.fill
        if source.pins or fetching.origins.manifest is not None:
            return
        if self._look(fetching.stop).revision != fill.listing.revision:
            fill.drop()
            raise WeightsError(
                f"{fetching.source} changed while it was copied.",
                source=fill.source,
                next_step="Push again when nothing writes there.",
            )

    # -- the store's copy ---------------------------------------------------------------------

    def _share(self, tree: Tree) -> None:
        """The store has it too, afterwards; asked once a tree, and once an hour of use."""
        if self.mirror is None or (tree.is_stored(self.mirror.store.url) and self._is_kept(tree)):
            return
        self.meter.enter(Phase.STORING)
        try:
            manifest = tree.manifest()
            paths = {entry.sha256: tree.files / entry.path for entry in manifest.entries}
            self.meter.expect(files=len(manifest.entries), size=manifest.bytes)
            self.mirror.publish(manifest, paths.__getitem__, tick=self.meter.moved, stop=self.stop)
            tree.mark_stored(self.mirror.store.url)
        except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
            self._unshared(error)

    def _is_kept(self, tree: Tree) -> bool:
        """Whether the store has the copy that it was given, as far as was looked lately."""
        if not _is_due(tree):
            return True
        if self._stored(tree.name) is None:
            tree.unmark_stored()
            return False
        self._note_use(tree)
        return True

    def _note_use(self, tree: Tree) -> None:
        """So that the store's copy does not count as unused (`prune --store`)."""
        assert self.mirror is not None
        with suppress(StoreError):
            self.mirror.record_use(tree.name)

    def _unshared(self, error: Exception) -> None:
        self.meter.note(f"the store's copy could not be used: {error}")


def _is_due(tree: Tree) -> bool:
    """Whether its use was not noted in the store lately; now it counts as noted."""
    noted = tree.path / "stored"
    with suppress(OSError):
        if time.time() - noted.stat().st_mtime > _NOTED:
            os.utime(noted)
            return True
    return False


def _at(plan: WeightsPlan, revision: str) -> WeightsPlan:
    """Asked for by its commit, where a source can be: a branch may have moved since."""
    if not revision or not plan.source.startswith("hf://"):
        return plan
    return replace(plan, source=f"{plan.source.partition('@')[0]}@{revision}")


def _listing_of(manifest: Manifest) -> Listing:
    files = (ListedFile(e.path, e.size, sha256=e.sha256) for e in manifest.entries)
    return Listing(manifest.source, manifest.revision, tuple(files))
