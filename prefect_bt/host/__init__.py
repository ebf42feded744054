"""What this machine offers a node: folders, processes, mounts, devices. Linux, standard library.

Shared by the local substrate, which launches and observes nodes, and by the node itself.
"""
