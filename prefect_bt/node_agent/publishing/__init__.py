"""Publish the nodes of this machine through the store, for readers on other machines.

Begin with `publisher`; `host_publisher` runs it in a guard, `node_agent.pod.run_node` in a pod.
"""
