"""A source as it is now beside what was mirrored of it before: why something is fetched again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.progress import format_items
from prefect_bt.weights.cache.digest_index import source_id
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.url_redaction import redact_url

_SHORT = 12
_WITHOUT_SHA256 = frozenset({"tag:", "git:"})
"""How identities begin (weights.cache.digest_index) of files whose source tells no sha256."""


@dataclass(frozen=True)
class DesiredFile:
    """A file of the mirror.

    `sha256` and `identity` (weights.cache.digest_index) are empty where unknown.
    """

    path: str
    size: int
    sha256: str = ""
    identity: str = ""


@dataclass(frozen=True)
class CurrentState:
    """What a mirror would have. `seen_before`: this machine knows contents of it from before."""

    revision: str
    files: Sequence[DesiredFile]
    seen_before: bool
    in_store: bool


def explain_refetch(plan: WeightsPlan, now: CurrentState, cache: NodeCache) -> str:
    """One sentence beside the newest tree of the same source; "" when nothing was here before."""
    place = source_id(redact_url(plan.source))  # trees do not tell what follows a ?
    trees = [
        tree for tree in cache.list_trees() if source_id(redact_url(tree.summary.source)) == place
    ]
    ours = [tree for tree in trees if tree.summary.key == plan.key]
    newest = max(ours or trees, key=lambda tree: tree.summary.created_at, default=None)
    if newest is None:
        return _without_tree(now)
    before = _entries(newest)
    changes = _changes(before, now.files)
    old = newest.summary
    if old.key == plan.key:
        moved = f"The revision moved from {old.revision[:_SHORT]} to {now.revision[:_SHORT]}"
        return f"{moved}: {changes}."
    if redact_url(old.source) != redact_url(plan.source):
        return f"Here is {redact_url(old.source)}, which is another revision: {changes}."
    if old.revision == now.revision and set(before) != {file.path for file in now.files}:
        return f"Here it is with other patterns: {changes}."
    spelled = "patterns, auth or the secret's name were others"
    return f"Here it is under another key ({spelled}): {changes}."


def has_indexed_digests(desired: Sequence[DesiredFile]) -> bool:
    """Whether a digest is known that the source did not tell: from an earlier mirror, then."""
    return any(file.sha256 and file.identity[:4] in _WITHOUT_SHA256 for file in desired)


def _without_tree(now: CurrentState) -> str:
    if now.seen_before:
        return f"It was here before and was evicted{'; the store has it' if now.in_store else ''}."
    return "The store has it, from another machine or from before." if now.in_store else ""


def _changes(before: Mapping[str, str], desired: Sequence[DesiredFile]) -> str:
    new = [file for file in desired if file.path not in before]
    changed = [file for file in desired if file.path in before and before[file.path] != file.sha256]
    gone = len(before) - (len(desired) - len(new))
    counts = [f"{format_items(len(changed))} changed"] if changed else []
    counts += [f"{len(new)} new"] if new else []
    counts += [f"{gone} gone"] if gone else []
    return ", ".join(counts) or "the same files, which are linked"


def _entries(tree: CachedTree) -> dict[str, str]:
    """Path -> sha256; empty for a tree that went in this moment."""
    try:
        return {entry.path: entry.sha256 for entry in tree.read_manifest().entries}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
