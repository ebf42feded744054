"""From committed checkpoints to a server that answers.

    checkpoint_contents.py    contents of a checkpoint, from its manifest
    servable_checkpoints.py   servable checkpoints of a job, and why another is not
    checkpoint_selection.py   the models of one server; base_model.py: their base model
    serving_job.py            the job that runs a server, as a definition
    engines/                  the servers: command lines, keys, programs that start them
    rollout/                  a revision: deploy, wait, readiness, gate, traffic
    router/                   the stable address of a deployment

A serving job is a training job like any other: its start command is the server, its weights are the
checkpoints. Begin with `served_model`, the data, then `serving_job`.
"""
