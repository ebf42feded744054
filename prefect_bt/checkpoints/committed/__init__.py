"""Committed checkpoints in the store: the catalog, downloads, restores, verification.

Begin with `catalog`, the list that commands show; `commit_index` is the uploader's view and writes
the manifest; `restore` puts checkpoints back on a node.
"""
