"""What runs beside the user's commands on one node: it stages, runs, logs and uploads.

Imports neither Prefect nor pydantic, Docker or Kubernetes: a node starts in a tenth of a second.
Three processes a node, so that no single `kill -9` leaves commands running or a flush undone:

    guard       the launched process; adopts what the agent leaves, kills it, says LOST
    └── agent   phases, log, signals; in the node's own view of the file system (`view`)
        ├── /bin/sh -c COMMAND      one session a start command
        └── uploader                its stdin is the agent: closed means "flush and leave"
"""
