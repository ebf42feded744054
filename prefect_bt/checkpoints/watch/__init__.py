"""What changes in a checkpoint directory, and what has stopped changing."""
