"""From a stable checkpoint on a disk to a committed one in the store."""
