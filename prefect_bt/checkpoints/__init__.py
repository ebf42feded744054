"""Find checkpoints on a node's disk, commit them to the store, prune and restore them.

Begin with `upload.uploader`, the loop of one rank: `watch` finds changes, `validation` decides what
is complete, `upload` commits it. `committed` reads committed checkpoints, `retention` deletes them.
`layout` defines a checkpoint, `manifest` a committed one.
"""
