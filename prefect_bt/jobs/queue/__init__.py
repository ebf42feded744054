"""Start jobs of the queue on this machine.

The rules of the queue are in prefect_bt.capacity.
"""
