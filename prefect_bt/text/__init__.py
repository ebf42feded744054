"""Format durations, sizes, ranks, text of other programs; parse URIs. Pure.

Begin with `quantities`; `control_characters` makes the controls in a job's text visible.
"""
