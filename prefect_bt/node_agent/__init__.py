"""A node's own processes, beside the user's commands: they stage, run, log and upload.

They import neither Prefect nor pydantic, Docker or Kubernetes: a node starts in a tenth of a
second. Begin with `guard`, then `agent`. Three processes per node, so that no single `kill -9`
leaves commands running or a flush undone:

    guard       the launched process; adopts what the agent leaves, kills it, writes LOST
    └── agent   phases, log, signals; in the node's own view of the file system (host.mounts)
        ├── /bin/sh -c COMMAND      one session per start command
        └── uploader                its stdin is a pipe from the agent: closed means "flush, end"
"""
