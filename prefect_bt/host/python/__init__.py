"""The Python of local nodes: a virtual environment of the project, on a base interpreter.

Begin with `environment`; `base_interpreter` chooses the interpreter.
"""
