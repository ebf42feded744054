"""A node's own view of the file system: volumes and mount namespaces.

Begin with `volumes` (a plan's volumes as folders), then `namespace` (those folders at their paths).
"""
