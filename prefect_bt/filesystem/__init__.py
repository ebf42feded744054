"""Folders that jobs can write: opened, listed and deleted without following their links."""
