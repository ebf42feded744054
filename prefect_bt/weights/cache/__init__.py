"""The node cache: read-only copies of sources on this machine's disk."""
