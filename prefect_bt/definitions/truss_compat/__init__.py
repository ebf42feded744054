"""Programs and config files that were written for truss."""
