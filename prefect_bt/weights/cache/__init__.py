"""The node cache: read-only copies of sources on this machine's disk.

Begin with `node_cache`, which draws the folders; `staged_tree` is a tree until it is published.
"""
