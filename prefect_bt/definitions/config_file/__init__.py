"""Loading a config file: a Python file with one definition in it.

Begin with `loader`; `config_errors` says what went wrong, with file and line.
"""
