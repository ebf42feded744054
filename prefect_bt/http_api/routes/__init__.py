"""Routes: a module with a `router` for each resource."""
