"""Accept jobs and start them when there is room; the rules are in prefect_bt.queue."""
