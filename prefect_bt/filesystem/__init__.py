"""Folders that jobs can write: opened, listed and deleted without following their links.

Begin with `confined`, which opens a path below a folder; `trees` deletes and lists.
"""
