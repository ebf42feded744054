"""The files that a mirror would transfer now: the answer of `weights mirror --dry-run`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from prefect_bt.errors import StoreError
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.weights.cache.digest_index import DigestIndex, file_identity, source_id
from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.patterns import select_files
from prefect_bt.weights.sources.protocol import SourceRequest, TransientError, open_source
from prefect_bt.weights.store_copy.copies import StoreMirror
from prefect_bt.weights.worker_threads import RETRY_DELAYS, call_with_retries


class MirrorPlan(NamedTuple):
    """Number and bytes of the files at each place. A partial file may count as missing."""

    revision: str
    here: tuple[int, int] = (0, 0)
    from_store: tuple[int, int] = (0, 0)
    from_source: tuple[int, int] = (0, 0)


def plan_mirror(
    request: SourceRequest,
    cache: NodeCache,
    *,
    use_copy: bool = True,
    on_note: Callable[[str], None] | None = None,
) -> MirrorPlan:
    """Plan the transfers of a mirror. Write nothing; raise the same errors as a mirror."""
    plan, source = request.plan, open_source(request)
    retry = RETRY_DELAYS, threading.Event(), TransientError, on_note
    ask, listing = partial(call_with_retries, source.list_files, *retry), None
    if not (revision := call_with_retries(source.resolve_revision, *retry)):
        listing = ask()
        revision = listing.revision
    name = weights_tree_name(plan.key, revision)
    if tree := cache.find_tree(name):
        return MirrorPlan(revision, here=(tree.summary.files, tree.summary.bytes))
    copy = _list_copy(request, name) if use_copy else ()
    index = DigestIndex(cache.index_path(source_id(plan.source)))
    here, missing = list[int](), list[int]()
    for file in copy or select_files(plan, listing or ask()):
        sha256, size = file.sha256 or index.get(file_identity(plan.source, file)), file.size or 0
        (here if sha256 and cache.has_blob(sha256, size) else missing).append(size)
    present, rest = (len(here), sum(here)), (len(missing), sum(missing))
    if copy:
        return MirrorPlan(revision, present, from_store=rest)
    return MirrorPlan(revision, present, from_source=rest)


def _list_copy(request: SourceRequest, name: str) -> Sequence[ListedFile]:
    """Return the files of the store's copy; none when the store cannot be read."""
    if request.store is not None and not request.plan.source.startswith("bt://"):
        with suppress(StoreError):
            if found := StoreMirror(request.store).find_manifest(name):
                return found.files
    return ()
