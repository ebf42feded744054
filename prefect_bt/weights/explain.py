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

from prefect_bt.errors import PrefectBtError, StoreError, WeightsError
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.object_store.address import parse_bucket_url
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.cache.digest_index import DigestIndex, file_identity, source_id
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.cache.partial_file import partial_file_id
from prefect_bt.weights.changes import (
    CurrentState,
    DesiredFile,
    explain_refetch,
    has_indexed_digests,
)
from prefect_bt.weights.download.disk_space import select_evictions
from prefect_bt.weights.download.retry import LISTING_RETRY_DELAYS, call_with_retries
from prefect_bt.weights.file_selection import select_files
from prefect_bt.weights.inventory import allocated_bytes, count_reclaimable_bytes
from prefect_bt.weights.manifest import WeightsManifest
from prefect_bt.weights.sources.bucket import list_accesses
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import STALL_TIMEOUT, Source, SourceRequest, open_source
from prefect_bt.weights.store_copy.copies import StoreMirror
from prefect_bt.weights.url_redaction import redact_url

_LARGEST: Final = 5
_BUCKETS: Final = frozenset({"s3", "r2", "cw", "gs", "azure"})


class SourceStatus(StrEnum):
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
class FileTotals:
    """How much lies in one place."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class DiskSpace:
    """Bytes of the disk under the node cache. `fits`: after what may be evicted."""

    free: int = 0
    needed: int = 0
    fits: bool = True


@dataclass(frozen=True)
class Explanation:
    """About one source. Sizes in bytes; `largest` are (path, size)."""

    source: str
    mount_location: str
    key: str
    status: SourceStatus
    auth: str
    name: str = ""
    revision: str = ""
    pinned_by: str = ""
    files: int = 0
    bytes: int = 0
    here: FileTotals = field(default_factory=FileTotals)
    store: FileTotals = field(default_factory=FileTotals)
    upstream: FileTotals = field(default_factory=FileTotals)
    partial_bytes: int = 0
    """Of files that have begun to arrive, among those that are not here."""
    largest: tuple[tuple[str, int], ...] = ()
    disk: DiskSpace = field(default_factory=DiskSpace)
    evicts: tuple[str, ...] = ()
    again: str = ""
    """Why it is fetched although something of the source was here before."""
    error: str = ""
    next_step: str = ""


def explain_source(  # noqa: PLR0913 (as of mirror_source)
    plan: WeightsPlan,
    *,
    cache: NodeCache,
    secret: str | None = None,
    store: Store | None = None,
    upload_to_store: bool = True,
    stall_timeout: float = STALL_TIMEOUT,
) -> Explanation:
    """What a job's mirror would find now. What would make it fail is an answer, too.

    `upload_to_store`: whether the store keeps copies for other machines. `stall_timeout`: as of
    mirror_source.
    """
    try:
        return _Explainer(plan, cache, store, upload_to_store=upload_to_store).explain(
            secret, stall_timeout
        )
    except (WeightsError, StoreError) as error:
        return refused_explanation(plan, error)


def refused_explanation(plan: WeightsPlan, error: PrefectBtError) -> Explanation:
    """The answer for a source that a job could not have."""
    return replace(_blank(plan), error=error.message, next_step=error.next_step)


def describe_auth(plan: WeightsPlan) -> str:
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
        names = [way.name for way in list_accesses(plan, parse_bucket_url(plan.source), None)]
    except (StoreError, WeightsError):
        return "the credentials of this machine"
    return ", then ".join(names)


def _blank(plan: WeightsPlan) -> Explanation:
    return Explanation(
        redact_url(plan.source),
        plan.mount_location,
        plan.key,
        SourceStatus.REFUSED,
        auth=describe_auth(plan),
    )


class _Explainer:
    """One source, asked about once."""

    def __init__(
        self, plan: WeightsPlan, cache: NodeCache, store: Store | None, *, upload_to_store: bool
    ) -> None:
        self._plan, self._cache, self._store = plan, cache, store
        shared = store is not None and upload_to_store and not plan.source.startswith("bt://")
        self._mirror = StoreMirror(store) if store is not None and shared else None
        self._index = DigestIndex(cache.index_path(source_id(plan.source)))

    def explain(self, secret: str | None, stall_timeout: float) -> Explanation:
        plan = self._plan
        source = open_source(SourceRequest(plan, secret, self._store, stall_timeout))
        revision, told = self._list_desired(source)
        name = weights_tree_name(plan.key, revision)
        tree = self._cache.find_tree(name)
        copy = self._mirror.find_manifest(name) if self._mirror else None
        in_store = copy is not None
        # A copy tells what its source may not: digests.
        wanted = _entries(copy) if copy else told
        here = [file for file in wanted if tree or self._is_cached(file, name)]
        paths = {file.path for file in here}
        rest = [file for file in wanted if file.path not in paths]
        stored, upstream = (rest, []) if in_store else (list[DesiredFile](), rest)
        partial = sum(self._partial_bytes(file) for file in rest)
        needed = 0 if self._is_local_store(stored) else sum(file.size for file in rest) - partial
        disk, evicts = self._plan_disk_space(needed)
        now = CurrentState(revision, wanted, has_indexed_digests(told), in_store)
        answer = replace(
            _blank(plan),
            status=_status(bool(tree), len(here) == len(wanted), in_store, bool(here or partial)),
            name=name,
            revision=revision,
            pinned_by=_describe_pin(plan.source, source, revision),
            files=len(wanted),
            bytes=sum(file.size for file in wanted),
            here=_share(here),
            store=_share(stored),
            upstream=_share(upstream),
            partial_bytes=partial,
            largest=_largest(wanted),
            disk=disk,
            evicts=evicts,
            again=explain_refetch(plan, now, self._cache) if rest else "",
        )
        return answer if disk.fits else replace(answer, **_disk_full_fields(answer))

    # -- which files --------------------------------------------------------------------------

    def _list_desired(self, source: Source) -> tuple[str, list[DesiredFile]]:
        """Upstream is asked only where a job would ask it."""
        known = (
            self._find_manifest(weights_tree_name(self._plan.key, source.pinned_revision))
            if source.pinned_revision
            else None
        )
        if known is not None:
            return known.revision, _entries(known)
        listing = call_with_retries(source.list_files, LISTING_RETRY_DELAYS, threading.Event())
        return listing.revision, [
            self._to_desired_file(file) for file in select_files(self._plan, listing)
        ]

    def _find_manifest(self, name: str) -> WeightsManifest | None:
        tree = self._cache.find_tree(name)
        if tree is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                return tree.read_manifest()
        return self._mirror.find_manifest(name) if self._mirror else None

    def _to_desired_file(self, file: ListedFile) -> DesiredFile:
        known = file_identity(self._plan.source, file)
        sha256 = file.sha256 or (self._index.get(known) if known else "")
        return DesiredFile(file.path, file.size or 0, sha256, known)

    # -- how much is here ---------------------------------------------------------------------

    def _is_cached(self, file: DesiredFile, name: str) -> bool:
        if file.sha256 and self._cache.has_blob(file.sha256, file.size):
            return True
        try:
            begun = self._cache.staging_path(name) / "files" / file.path
            return begun.stat().st_size == file.size
        except OSError:
            return False

    def _partial_bytes(self, file: DesiredFile) -> int:
        if not file.identity:
            return 0
        part = self._cache.partial_path(partial_file_id(file.identity))
        return min(file.size, allocated_bytes(part / "data"))

    def _is_local_store(self, stored: Sequence[DesiredFile]) -> bool:
        """Whether the store's files lie on the cache's disk: they are linked, nothing is copied."""
        file = self._mirror.find_local_path(stored[0].sha256) if self._mirror and stored else None
        disk = _existing(self._cache.root).stat().st_dev
        return file is not None and file.stat().st_dev == disk

    # -- room ---------------------------------------------------------------------------------

    def _plan_disk_space(self, needed: int) -> tuple[DiskSpace, tuple[str, ...]]:
        free = shutil.disk_usage(_existing(self._cache.root)).free
        excess = needed - free
        if self._cache.budget is not None and needed:
            excess = max(excess, self._cache.usage() + needed - self._cache.budget)
        names = tuple(select_evictions(self._cache, excess=excess))
        freed = count_reclaimable_bytes(self._cache, names) if needed > free else 0
        return DiskSpace(free, needed, needed <= free + freed), names


def _status(staged: bool, complete: bool, in_store: bool, partial: bool) -> SourceStatus:
    if staged:
        return SourceStatus.STAGED
    if complete:
        return SourceStatus.CACHED
    if in_store:
        return SourceStatus.IN_STORE
    return SourceStatus.PARTIAL if partial else SourceStatus.UPSTREAM


def _disk_full_fields(answer: Explanation) -> dict[str, object]:
    disk = answer.disk
    return {
        "status": SourceStatus.REFUSED,
        "error": f"{answer.source} needs {disk.needed / 1e9:.1f} GB more on this machine's disk, "
        f"and {disk.free / 1e9:.1f} GB are free.",
        "next_step": "Make room (`prefect-bt weights prune`), give patterns, or set "
        "PREFECT_BT_STATE_DIR to another disk.",
    }


def _describe_pin(text: str, source: Source, revision: str) -> str:
    match text.partition("://")[0]:
        case "hf" if source.pinned_revision:
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


def _entries(manifest: WeightsManifest) -> list[DesiredFile]:
    return [DesiredFile(entry.path, entry.size, entry.sha256) for entry in manifest.entries]


def _share(files: Sequence[DesiredFile]) -> FileTotals:
    return FileTotals(len(files), sum(file.size for file in files))


def _largest(files: Sequence[DesiredFile]) -> tuple[tuple[str, int], ...]:
    ordered = sorted(files, key=lambda file: (-file.size, file.path))
    return tuple((file.path, file.size) for file in ordered[:_LARGEST])


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())
