"""The client of the Prefect API outside of flows, and Prefect's database read without a server."""
