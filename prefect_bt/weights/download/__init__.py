"""Bytes of a source onto this machine's disk, resumed and verified.

Begin with `download`; `small_files` and `block_download` move the bytes, `retry` repeats.
"""
