"""The client of the Prefect API, and Prefect's own database read without a server.

Begin with `client`: what is asked of Prefect from outside a flow is there.
"""
