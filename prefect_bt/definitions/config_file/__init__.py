"""Load a config file: a Python file with one definition in it.

Begin with `loader`; `sibling_imports` finds the modules beside the file, `isolation` keeps its
output and arguments apart from those of the program.
"""
