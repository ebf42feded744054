"""A project's training cache: its size on this machine, its snapshots in the store.

Begin with `usage`; `snapshot` is the same for other machines.
"""
