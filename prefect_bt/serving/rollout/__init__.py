"""Rollout of a revision: deploy, readiness, gate, traffic, rollback.

Begin with `deploy`, then `traffic`, which chooses the next action of a revision and is pure.
"""
