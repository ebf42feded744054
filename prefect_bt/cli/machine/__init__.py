"""Commands about this machine: the local server, garbage collection, the training cache.

Begin with `up_down`.
"""
