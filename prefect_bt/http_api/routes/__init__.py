"""One module for each resource, with its `router`."""
