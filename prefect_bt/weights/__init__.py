"""Weights: a source resolved, mirrored once, kept on this machine, published read-only for nodes.

cache/node_cache.py lists the folders of a machine, store_copy/copies.py the keys of the store.
Begin with `mirror`. From the outside in:

    mirror.py        one call: pin the revision, download, publish, lease, store
    store_copy/      the store's copies; shared_download.py divides a download among hosts
    cache/           staged_tree.py: a tree until one rename publishes it; eviction.py: room on
                     the disk and the budget
    download/        engine.py: blocks of files over several connections; readers.py: bytes from
                     the store's copy or the source
    sources/         protocol.py: the protocol of a source, and the table of its adapters
    dry_run.py       the files that a mirror would transfer
    verification.py  re-hash of the node cache and of the store's copies
"""

from prefect_bt.text.progress import Phase, Progress
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.mirror import MirrorResult, mirror_source

__all__ = [
    "CachedTree",
    "MirrorResult",
    "NodeCache",
    "Phase",
    "Progress",
    "mirror_source",
]
