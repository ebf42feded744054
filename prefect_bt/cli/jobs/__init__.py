"""Commands about jobs and projects: push, view, stop, retry, recreate, delete, drill.

Begin with `push`; `selection` turns filters into jobs, `render` has the tables.
"""
