"""Which committed checkpoints stay: the policy, holds, and the prune."""
