"""What a job would fetch of a source, from where, and why again. Reads only: nothing is fetched.

Each file is counted at the first place that has its content: this machine, the store, upstream.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from prefect_bt.contract import weights_tree
from prefect_bt.errors import PrefectBtError, StoreError, WeightsError
from prefect_bt.objects.protocols import Store
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights.access import find_place, ways_in
from prefect_bt.weights.cache import NodeCache
from prefect_bt.weights.choosing import choose
from prefect_bt.weights.comparing import Now, Wanted, was_seen, why_again
from prefect_bt.weights.index import Index, identity, place_of
from prefect_bt.weights.inventory import bytes_of, freed_by
from prefect_bt.weights.listing import ListedFile
from prefect_bt.weights.manifest import Manifest
from prefect_bt.weights.parts import part_id
from prefect_bt.weights.retrying import LISTING_PAUSES, again
from prefect_bt.weights.room import candidates_to_go
from prefect_bt.weights.shared import StoreMirror
from prefect_bt.weights.source import STALL_SECONDS, Source, SourceRequest, open_source
from prefect_bt.weights.telling import shown

_LARGEST: Final = 5
_BUCKETS: Final = frozenset({"s3", "r2", "cw", "gs", "azure"})


class Status(StrEnum):
    STAGED = "staged"
    """Published here: a job mounts it at once."""
    CACHED = "cached"
    """All of its content is here; a job links it."""
    IN_STORE = "in_store"
    """The store has a copy; upstream sends nothing."""
    PARTIAL = "partial"
    """Some of it is here; the rest comes from upstream."""
    UPSTREAM = "upstream"
    REFUSED = "refused"
    """A job would fail with `error`."""


@dataclass(frozen=True)
class Share:
    """How much lies in one place."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Disk:
    """Bytes of the disk under the node cache. `fits`: after what may be evicted."""

    free: int = 0
    needed: int = 0
    fits: bool = True


@dataclass(frozen=True)
class Answer:
    """About one source. Sizes in bytes; `largest` are (path, size)."""

    source: str
    mount_location: str
    key: str
    status: Status
    auth: str
    name: str = ""
    revision: str = ""
    pinned_by: str = ""
    files: int = 0
    bytes: int = 0
    here: Share = field(default_factory=Share)
    store: Share = field(default_factory=Share)
    upstream: Share = field(default_factory=Share)
    partial_bytes: int = 0
    """Of files that have begun to arrive, among those that are not here."""
    largest: tuple[tuple[str, int], ...] = ()
    disk: Disk = field(default_factory=Disk)
    evicts: tuple[str, ...] = ()
    again: str = ""
    """Why it is fetched although something of the source was here before."""
    error: str = ""
    next_step: str = ""


def explain(  # noqa: PLR0913 (as of mirror_source)
    plan: WeightsPlan,
    *,
    cache: NodeCache,
    secret: str | None = None,
    store: Store | None = None,
    to_store: bool = True,
    stall: float = STALL_SECONDS,
) -> Answer:
    """What a job's mirror would find now. What would make it fail is an answer, too.

    `to_store`: whether the store keeps copies for other machines. `stall`: as of mirror_source.
    """
    try:
        return _Asking(plan, cache, store, to_store=to_store).answer(secret, stall)
    except (WeightsError, StoreError) as error:
        return refused(plan, error)


def refused(plan: WeightsPlan, error: PrefectBtError) -> Answer:
    """The answer for a source that a job could not have."""
    return replace(_blank(plan), error=error.what, next_step=error.next_step)


def auth_of(plan: WeightsPlan) -> str:
    """With what the source is read, in words that hold no secret."""
    scheme = plan.source.partition("://")[0]
    match plan.auth.method:
        case "AWS_ASSUME_ROLE":
            return f"the role {plan.auth.role_arn}, assumed with the credentials of this machine"
        case "AWS_OIDC":
            return f"the role {plan.auth.role_arn}, by this machine's web identity"
        case "GCP_OIDC":
            return f"the workload identity of {plan.auth.service_account}"
        case _ if plan.secret:
            return f"the secret {plan.secret!r}"
        case _ if scheme in _BUCKETS:
            return _ambient(plan)
        case _:
            return {"file": "this machine", "bt": "this store"}.get(scheme, "nobody")


def _ambient(plan: WeightsPlan) -> str:
    try:
        names = [way.name for way in ways_in(plan, find_place(plan), None)]
    except WeightsError:
        return "the credentials of this machine"
    return ", then ".join(names)


def _blank(plan: WeightsPlan) -> Answer:
    return Answer(
        shown(plan.source), plan.mount_location, plan.key, Status.REFUSED, auth=auth_of(plan)
    )


class _Asking:
    """One source, asked about once."""

    def __init__(
        self, plan: WeightsPlan, cache: NodeCache, store: Store | None, *, to_store: bool
    ) -> None:
        self._plan, self._cache, self._store = plan, cache, store
        shared = store is not None and to_store and not plan.source.startswith("bt://")
        self._mirror = StoreMirror(store) if store is not None and shared else None
        self._index = Index(cache.index(place_of(plan.source)))

    def answer(self, secret: str | None, stall: float) -> Answer:
        plan = self._plan
        source = open_source(SourceRequest(plan, secret, self._store, stall))
        revision, told = self._wanted(source)
        name = weights_tree(plan.key, revision)
        tree = self._cache.find(name)
        copy = self._mirror.manifest(name) if self._mirror else None
        in_store = copy is not None
        # A copy tells what its source may not: digests.
        wanted = _entries(copy) if copy else told
        here = [file for file in wanted if tree or self._is_here(file, name)]
        paths = {file.path for file in here}
        rest = [file for file in wanted if file.path not in paths]
        stored, upstream = (rest, []) if in_store else (list[Wanted](), rest)
        partial = sum(self._begun(file) for file in rest)
        needed = 0 if self._is_lent(stored) else sum(file.size for file in rest) - partial
        disk, evicts = self._room(needed)
        now = Now(revision, wanted, was_seen(told), in_store)
        answer = replace(
            _blank(plan),
            status=_status(bool(tree), len(here) == len(wanted), in_store, bool(here or partial)),
            name=name,
            revision=revision,
            pinned_by=_pinned_by(plan.source, source, revision),
            files=len(wanted),
            bytes=sum(file.size for file in wanted),
            here=_share(here),
            store=_share(stored),
            upstream=_share(upstream),
            partial_bytes=partial,
            largest=_largest(wanted),
            disk=disk,
            evicts=evicts,
            again=why_again(plan, now, self._cache) if rest else "",
        )
        return answer if disk.fits else replace(answer, **_too_little(answer))

    # -- which files --------------------------------------------------------------------------

    def _wanted(self, source: Source) -> tuple[str, list[Wanted]]:
        """Upstream is asked only where a job would ask it."""
        known = self._known(weights_tree(self._plan.key, source.fixed)) if source.fixed else None
        if known is not None:
            return known.revision, _entries(known)
        listing = again(source.list, LISTING_PAUSES, threading.Event())
        return listing.revision, [self._recognised(file) for file in choose(self._plan, listing)]

    def _known(self, name: str) -> Manifest | None:
        tree = self._cache.find(name)
        if tree is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                return tree.manifest()
        return self._mirror.manifest(name) if self._mirror else None

    def _recognised(self, file: ListedFile) -> Wanted:
        known = identity(self._plan.source, file)
        sha256 = file.sha256 or (self._index.get(known) if known else "")
        return Wanted(file.path, file.size or 0, sha256, known)

    # -- how much is here ---------------------------------------------------------------------

    def _is_here(self, file: Wanted, name: str) -> bool:
        if file.sha256 and self._cache.has(file.sha256, file.size):
            return True
        try:
            begun = self._cache.fill(name) / "files" / file.path
            return begun.stat().st_size == file.size
        except OSError:
            return False

    def _begun(self, file: Wanted) -> int:
        if not file.identity:
            return 0
        part = self._cache.part(part_id(file.identity))
        return min(file.size, bytes_of(part / "data"))

    def _is_lent(self, stored: Sequence[Wanted]) -> bool:
        """Whether the store's files lie on the cache's disk: they are linked, nothing is copied."""
        file = self._mirror.lend(stored[0].sha256) if self._mirror and stored else None
        disk = _existing(self._cache.root).stat().st_dev
        return file is not None and file.stat().st_dev == disk

    # -- room ---------------------------------------------------------------------------------

    def _room(self, needed: int) -> tuple[Disk, tuple[str, ...]]:
        free = shutil.disk_usage(_existing(self._cache.root)).free
        excess = needed - free
        if self._cache.budget is not None and needed:
            excess = max(excess, self._cache.usage() + needed - self._cache.budget)
        names = tuple(candidates_to_go(self._cache, excess=excess))
        freed = freed_by(self._cache, names) if needed > free else 0
        return Disk(free, needed, needed <= free + freed), names


def _status(staged: bool, whole: bool, in_store: bool, begun: bool) -> Status:
    if staged:
        return Status.STAGED
    if whole:
        return Status.CACHED
    if in_store:
        return Status.IN_STORE
    return Status.PARTIAL if begun else Status.UPSTREAM


def _too_little(answer: Answer) -> dict[str, object]:
    disk = answer.disk
    return {
        "status": Status.REFUSED,
        "error": f"{answer.source} needs {disk.needed / 1e9:.1f} GB more on this machine's disk, "
        f"and {disk.free / 1e9:.1f} GB are free.",
        "next_step": "Make room (`prefect-bt weights prune`), give patterns, or set "
        "PREFECT_BT_STATE_DIR to another disk.",
    }


def _pinned_by(text: str, source: Source, revision: str) -> str:
    match text.partition("://")[0]:
        case "hf" if source.fixed:
            return "the commit that the source names"
        case "hf":
            return f"{text.partition('@')[2] or 'main'} -> {revision}"
        case "https":
            return "its ETag or the time of its last change"
        case "file":
            return "names, sizes and times of its files"
        case "bt":
            return "the checkpoint's manifest"
        case _:
            return "names, sizes and ETags of its objects"


def _entries(manifest: Manifest) -> list[Wanted]:
    return [Wanted(entry.path, entry.size, entry.sha256) for entry in manifest.entries]


def _share(files: Sequence[Wanted]) -> Share:
    return Share(len(files), sum(file.size for file in files))


def _largest(files: Sequence[Wanted]) -> tuple[tuple[str, int], ...]:
    ordered = sorted(files, key=lambda file: (-file.size, file.path))
    return tuple((file.path, file.size) for file in ordered[:_LARGEST])


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())
