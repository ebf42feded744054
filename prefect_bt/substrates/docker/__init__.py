"""Nodes as containers of a Docker Engine.

Begin with `substrate`; `container` is pure, from a node plan to the arguments of one `create`.
"""
