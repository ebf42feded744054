"""First process of the agent container of a pod.

Begin reading with `__main__`. It prepares the node as a launcher does on one machine
(prefect_bt.host.nodes), starts the same guard and agent, and exchanges status, log and requests
through the store.
"""
