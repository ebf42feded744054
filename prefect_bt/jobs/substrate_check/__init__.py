"""Check whether jobs can run on a substrate.

Begin with `checks`; `trial_gang` launches two nodes that test what only nodes can.
"""
