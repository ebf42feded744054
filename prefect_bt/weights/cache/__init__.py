"""The node cache: read-only copies of sources on this machine's disk.

Begin with `node_cache`, which lists the folders; `staged_tree` is a tree before its publication.
"""
