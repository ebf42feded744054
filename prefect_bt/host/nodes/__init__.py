"""The processes of a node on this machine, for its launcher: files, launch, handle.

Begin with `launch`, which starts the guard, and `handle`, which observes and stops the node.
"""
