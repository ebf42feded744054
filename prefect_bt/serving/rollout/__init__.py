"""A revision's way to the requests: deploy, readiness, gate, traffic, rollback.

Begin with `deploy`, then `traffic`, which decides what a revision does next and is pure.
"""
