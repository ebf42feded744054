"""Format durations, sizes, ranks, and text of other programs. Pure.

Begin with `quantities`; `control_characters` makes the controls in a job's text visible.
"""
