"""Commands about mirrored weights.

Begin with `mirror`; `sources` finds the sources that a command is about.
"""
