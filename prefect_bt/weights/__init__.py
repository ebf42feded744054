"""Weights: resolve a source, mirror it once, publish it read-only for nodes.

    <state dir>/weights/<key>                 link to the published folder; what nodes mount
    <state dir>/weights/.published/<key>-<revision>/   the files, complete and verified
    <state dir>/weights/.staging/<key>-<revision>/     being filled; continued by the next run
    <state dir>/weights/.staging/<key>-<revision>.halves/   files that are not whole yet
    <state dir>/weights/.locks/<key>          one filler at a time on this machine

source.py holds the protocol of a source and the table of its adapters; fetching.py tries again what
may pass; mirror.py verifies and publishes.
"""

from prefect_bt.weights.mirror import mirror_source

__all__ = ["mirror_source"]
