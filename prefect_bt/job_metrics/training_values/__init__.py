"""Read the training values of a node from what its trainer prints. Begin with `reader`."""
