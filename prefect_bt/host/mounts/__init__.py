"""A node's own view of the file system: volumes and mount namespaces."""
