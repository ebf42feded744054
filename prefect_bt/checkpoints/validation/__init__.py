"""Whether a checkpoint on a disk is complete, judged by its own files.

Begin with `validator`; `completeness` and `rank_files` have the rules, `file_formats` inspects one
file, `finished` knows the last file that each framework writes.
"""
