"""Weights: resolve a source, mirror it once, publish it read-only for nodes.

    <state dir>/weights/<key>                 link to the published folder; what nodes mount
    <state dir>/weights/.published/<key>-<revision>/   the files, complete and verified
    <state dir>/weights/.staging/<key>-<revision>/     being filled; continued by the next run
    <state dir>/weights/.locks/<key>          one filler at a time on this machine

`hf://` and `file://` are what can be mirrored today; planning refuses the other schemes.
"""

from prefect_bt.weights.mirror import mirror_source

__all__ = ["mirror_source"]
