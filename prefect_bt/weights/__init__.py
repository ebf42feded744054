"""Weights: a source resolved, mirrored once, kept on this machine, published read-only for nodes.

Begin with `mirror`, which joins the steps in `sources/`, `download/`, `cache/` and `store_copy/`.
cache/node_cache.py lists the folders of a machine, store_copy/copies.py the keys of the store.
"""

from prefect_bt.weights.cache.node_cache import NodeCache
from prefect_bt.weights.mirror import MirrorResult, mirror_source

__all__ = ["MirrorResult", "NodeCache", "mirror_source"]
