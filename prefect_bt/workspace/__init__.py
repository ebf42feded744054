"""The user's folder, packed where a job is pushed and unpacked in each node.

Import from the modules: `roots.plan_layout` (which folders), `archive.pack_workspace` (one
reproducible tar), `unpack.unpack_workspace` (the tar becomes the working directory). Nothing is
imported here because a node unpacks with the standard library alone; only packing needs pathspec.
"""
