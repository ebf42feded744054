"""Metrics of this machine's jobs and of the queue, for Prometheus: the endpoint of `up`, `worker`.

Begin with `endpoint`, which serves what `collector` collects.
"""
