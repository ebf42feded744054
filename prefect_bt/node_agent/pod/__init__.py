"""A node as a pod: the first process of the agent's container.

Begin with `__main__`. It prepares what a launcher prepares on one machine (prefect_bt.host.nodes),
starts the same guard and agent, and passes status, log and requests through the store.
"""
