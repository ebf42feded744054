"""Commands about checkpoints, and the explorer of their files.

Begin with `list`; `browser` is the state of the explorer, `browser_terminal` its screen.
"""
