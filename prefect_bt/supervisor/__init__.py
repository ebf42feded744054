"""The process that owns a job on this machine and restarts its flow."""
