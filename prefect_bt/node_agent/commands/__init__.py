"""Running a node's start commands, on the machine or in a container.

Begin with `loop`; `runner` runs them in a shell of this machine, `container_runner` in a container.
"""
