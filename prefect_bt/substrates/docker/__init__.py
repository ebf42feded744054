"""Nodes as containers of a Docker Engine."""
