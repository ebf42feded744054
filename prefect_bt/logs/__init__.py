"""Logs of jobs: the line format, reading, the archive in the store.

`rank_log` is the log of one rank, live or archived; `rank_reader` reads its lines; `job_reader`
merges the lines of all ranks and attempts.
"""
