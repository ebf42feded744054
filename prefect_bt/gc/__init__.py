"""`prefect-bt gc`: finds and removes what no living job owns, on this machine and in its store.

Begin with `collector`. Each other module finds one kind of thing, and `liveness` says whether a job
is over. What cannot be judged (the store does not answer, another machine may run the job) stays.
"""
