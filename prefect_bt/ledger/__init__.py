"""Projects, jobs, attempts and events: records in the store, fenced by epochs.

Begin with `records`, the data, and `ledger`, the reads and writes; `fencing_epochs` decides which
machine may act for a job.
"""
