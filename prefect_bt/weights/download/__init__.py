"""Bytes of a source onto this machine's disk, resumed and verified."""
