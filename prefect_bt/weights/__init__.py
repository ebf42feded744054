"""Weights: a source resolved, mirrored once, kept on this machine, published read-only for nodes.

cache/node_cache.py draws the folders of a machine, store_copy/copies.py the keys of the store. From
the outside in:

    mirror.py     one call: who fetches, what is here, the lease
    store_copy/single_flight.py     one host at a time; download/origins.py: the store's copy before
    upstream cache/staged_tree.py    a tree on its way, published by one rename download/download.py
    small files whole (download/small_files.py), large ones in blocks (download/block_download.py,
    cache/partial_file.py) sources/protocol.py     the protocol of a source, and the table of its
    adapters download/disk_space.py       eviction (cache/lru_eviction.py decides) to make room and
    to keep a budget explain.py        what a job would fetch; cache/verify_cache.py: whether what
    is here is what it was
"""

from prefect_bt.weights.cache.node_cache import CachedTree, NodeCache
from prefect_bt.weights.mirror import mirror_source
from prefect_bt.weights.progress import MirrorPhase, MirrorProgress
from prefect_bt.weights.result import MirrorResult

__all__ = [
    "CachedTree",
    "MirrorPhase",
    "MirrorProgress",
    "MirrorResult",
    "NodeCache",
    "mirror_source",
]
