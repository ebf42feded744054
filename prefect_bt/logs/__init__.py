"""Logs of jobs: the line format, reading, deduplication, the archive in the store."""
