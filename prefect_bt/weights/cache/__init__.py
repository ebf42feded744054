"""Read-only copies of sources on this machine's disk. Begin with `node_cache`."""
