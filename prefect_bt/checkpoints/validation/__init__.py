"""Decide from its own files whether a checkpoint on a disk is complete.

Begin with `validator`; `completeness` and `rank_files` have the rules, `file_formats` inspects one
file, `finished` knows the last file that each framework writes.
"""
