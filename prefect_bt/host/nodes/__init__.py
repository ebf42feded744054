"""A node's processes on this machine, as its launcher sees them: files, launch, handle."""
