"""Inference servers: their command lines, keys, and the programs that start them.

Begin with `command_lines`, a literal table; `transformers_server` runs in the job, stand-alone.
"""
