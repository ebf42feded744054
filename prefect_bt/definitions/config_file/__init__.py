"""Loading a config file: a Python file with one definition in it."""
