"""How durations, sizes, ranks, and text of other programs are written. Pure.

Begin with `quantities`; `control_characters` makes the controls in a job's text visible.
"""
