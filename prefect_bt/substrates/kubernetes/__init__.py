"""Gangs as Indexed Jobs of a Kubernetes cluster.

Begin with `substrate`. `manifests` is pure, from a gang plan to the objects of one attempt, and
`pods` has the tables from what Kubernetes says of a pod to a cause. What the agent in the pod
says comes through the store (ledger/node_objects.py).
"""
