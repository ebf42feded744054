"""`prefect-bt gc`: find and remove what no living job owns, on this machine and in its store.

Begin with `collector`. `liveness` decides whether a job is over, and each other module finds one
kind of thing. A thing stays if its job cannot be judged: its store does not answer, or another
machine may run the job.
"""
