"""Nodes as processes of this machine.

Begin with `substrate`; the processes are launched by `host.nodes.launch`.
"""
