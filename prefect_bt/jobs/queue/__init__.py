"""Accept jobs and start them when there is room; the rules of the queue are in prefect_bt.capacity.

Begin with `acceptance` and `start_queued`. `lost_jobs` puts back what a dead process left, `poller`
does all that for `up` and `worker`, and the other modules speak with Prefect and Kubernetes.
"""
