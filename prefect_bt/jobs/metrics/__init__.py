"""The metrics of a job in Python: `prefect_bt.metrics`."""
