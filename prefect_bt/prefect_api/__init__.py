"""The client of the Prefect API, and Prefect's own database read without a server."""
