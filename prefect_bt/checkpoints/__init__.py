"""Checkpoints: found on a node's disk, committed to the store, pruned, restored.

Begin with `upload.uploader`, the loop of one rank: `watch` finds what changed, `validation` decides
what is complete, `upload` commits it. `committed` reads what is in the store, `retention` deletes
it. `layout` says what a checkpoint is, `manifest` what a committed one is.
"""
