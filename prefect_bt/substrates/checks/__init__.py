"""Checks of `prefect-bt check` that need no node: of this machine, and of a cluster."""
