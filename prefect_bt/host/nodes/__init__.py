"""A node's processes on this machine, as its launcher sees them: files, launch, handle.

Begin with `launch`, which starts the guard, and `handle`, which observes and stops the node.
"""
