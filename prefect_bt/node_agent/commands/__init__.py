"""Running a node's start commands, on the machine or in a container."""
