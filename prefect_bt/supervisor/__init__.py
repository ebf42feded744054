"""The process that owns a job on this machine and restarts its flow.

Begin with `process`, the supervisor itself, which imports nothing of Prefect; `run_flow` is the
process that it starts, `supervised_job` what it does when a flow has ended.
"""
