"""Retention of committed checkpoints: the policy, holds, and the prune.

Begin with `policy`, which is pure; `prune` deletes, `holds` protects what a job is about to load.
"""
