"""Weights: a source resolved, mirrored once, kept on this machine, published read-only for nodes.

cache/node_cache.py draws the folders of a machine, store_copy/copies.py the keys of the store.
Begin with `mirror`. From the outside in:

    mirror.py      one call: who downloads, what is here, the lease
    store_copy/    the copy that all hosts share; single_flight.py: one host at a time
    cache/         staged_tree.py: a tree until it is published by one rename;
                   eviction.py: room on the disk, and the budget; verify_cache.py: re-hash
    download/      download.py: small files whole, large ones in blocks; origins.py: the store's
                   copy before upstream
    sources/       protocol.py: the protocol of a source, and the table of its adapters
    dry_run.py     what a mirror would transfer, without a transfer
"""

from prefect_bt.text.progress import Phase, Progress
from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.mirror import mirror_source
from prefect_bt.weights.result import MirrorResult

__all__ = [
    "CachedTree",
    "MirrorResult",
    "NodeCache",
    "Phase",
    "Progress",
    "mirror_source",
]
