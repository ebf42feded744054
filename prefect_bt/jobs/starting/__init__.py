"""Accept jobs and start them when there is room; the rules of the queue are in prefect_bt.queue.

Begin with `acceptance` and `start_queued`. `launcher` starts the process of a job, `lost_jobs` puts
back what a dead process left, `poller` does all that for `up` and `worker`, and the other modules
speak with Prefect and Kubernetes.
"""
