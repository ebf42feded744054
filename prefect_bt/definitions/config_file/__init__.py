"""Load a config file: a Python file with one definition in it.

Begin with `loader`; `config_errors` makes its errors, with file and line.
"""
