"""Logs of jobs: the line format, reading, the archive in the store.

Begin with `line_format`, then `job_reader`, which reads live and archived logs of all ranks.
"""
