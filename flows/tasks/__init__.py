"""The tasks that the flows are made of, and what they show of a job on its Prefect run.

Begin with `job_run`, the order of the steps; then `accept_job`, `attempt` and `finish_job`.
"""
