"""Commands about checkpoints, and the browser of their files.

Begin with `list`; `browser` is the interactive view, `browser_tree` its pure part.
"""
