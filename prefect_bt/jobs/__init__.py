"""A job's life: submit, start, stop, recover, retry, delete; the document others read.

Begin with `submit` (from a definition to an accepted job) and `start` (from there to a process);
`recover` starts a supervisor for an abandoned job, `document` is a job as others read it.
"""
