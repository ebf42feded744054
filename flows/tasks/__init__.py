"""The tasks that the flows are made of."""
