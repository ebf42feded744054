"""Weights: a source resolved, mirrored once, kept on this machine, published read-only for nodes.

cache.py draws the folders of a machine, shared.py the keys of the store. From the outside in:

    mirror.py     one call: who fetches, what is here, the lease
    claims.py     one host at a time; origins.py: the store's copy before upstream
    filling.py    a tree on its way, published by one rename
    bringing.py   small files whole (wholes.py), large ones in blocks (blocks.py, parts.py)
    source.py     the protocol of a source, and the table of its adapters
    room.py       eviction (eviction.py decides) to make room and to keep a budget
    why.py        what a job would fetch; integrity.py: whether what is here is what it was
"""

from prefect_bt.weights.cache import CachedTree, NodeCache
from prefect_bt.weights.mirror import MirrorResult, mirror_source
from prefect_bt.weights.progress import MirrorPhase, MirrorProgress

__all__ = [
    "CachedTree",
    "MirrorPhase",
    "MirrorProgress",
    "MirrorResult",
    "NodeCache",
    "mirror_source",
]
