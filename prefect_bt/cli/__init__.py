"""The command line `prefect-bt`, one package per group of commands.

Begin with `app`, which names all commands and imports each on use; `entry` is the script's entry
point; `ui` has what all commands share.
"""
