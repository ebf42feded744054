"""Whether a checkpoint on a disk is complete, by what its own files say."""
