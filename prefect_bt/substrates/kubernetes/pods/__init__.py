"""What Kubernetes reports of pods, as causes and messages. Pure.

`pod_states` reads the status of a pod, `warning_events` the events about it.
"""
