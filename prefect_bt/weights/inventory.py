"""The mirrored sources of this machine and of the store, and their selection by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import PrefectBtError
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.manifest import ManifestSummary, summarize
from prefect_bt.weights.store_copy.copies import StoreMirror

_MAX_LISTED: Final = 8
"""Sources that an error message lists."""


@dataclass(frozen=True)
class WeightsEntry:
    """Source at one revision. `tree` is None if only the store has the files."""

    summary: ManifestSummary
    tree: CachedTree | None
    in_store: bool

    @property
    def name(self) -> str:
        return weights_tree_name(self.summary.key, self.summary.revision)

    @property
    def location(self) -> str:
        """Return "here", "store" or "both"."""
        if self.tree is None:
            return "store"
        return "both" if self.in_store else "here"


def list_entries(cache: NodeCache, mirror: StoreMirror | None) -> list[WeightsEntry]:
    """Return the trees, least recently used first, then the store's other copies. StoreError."""
    names = set(mirror.list_names() if mirror else ())
    here = [WeightsEntry(tree.summary, tree, tree.name in names) for tree in cache.list_trees()]
    away = sorted(names - {entry.name for entry in here})
    found = [mirror.find_manifest(name) for name in away] if mirror else []
    return [*here, *(WeightsEntry(summarize(one), None, True) for one in found if one)]


def match_entries(entries: Sequence[WeightsEntry], pattern: str) -> list[WeightsEntry]:
    """Return entries with this name, source or key, or else entries whose name begins with it."""
    names = {pattern, redact_url(pattern)}
    exact = [one for one in entries if names & {one.name, one.summary.source, one.summary.key}]
    if exact or len(pattern) < 6:
        return exact
    return [one for one in entries if one.name.startswith(pattern)]


def select_entries(
    entries: Sequence[WeightsEntry], names: Sequence[str], place: str
) -> list[WeightsEntry]:
    """Return the entries that `names` select; raise PrefectBtError for a name without entries."""
    found: dict[str, WeightsEntry] = {}
    for name in names:
        matches = match_entries(entries, name)
        if not matches:
            sources = list(dict.fromkeys(redact_url(one.summary.source) for one in entries))
            more = len(sources) - _MAX_LISTED
            listed = ", ".join(sources[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
            raise PrefectBtError(
                f"No weights {name!r} on {place}.",
                next_step=f"There are: {listed or 'none'} (prefect-bt weights list).",
            )
        found |= {one.name: one for one in matches}
    return list(found.values())
