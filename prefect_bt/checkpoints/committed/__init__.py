"""Committed checkpoints in the store: the catalog, downloads, restores, verification."""
