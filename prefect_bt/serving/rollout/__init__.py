"""A revision's way to the requests: deploy, readiness, gate, traffic, rollback."""
