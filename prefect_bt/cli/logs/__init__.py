"""The command `logs`, and following a job."""
