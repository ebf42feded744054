"""From committed checkpoints to a server that answers.

    checkpoint_contents.py    what a checkpoint holds, from its manifest
    servable_checkpoints.py   those of a job, and why one of them cannot be served
    checkpoint_selection.py   which ones are served; base_model.py: on which base model
    serving_job.py            the job that runs a server, as a definition
    engines/                  the servers: command lines, keys, programs that start them
    rollout/                  a revision: deploy, wait, readiness, gate, traffic
    router/                   the stable address of a deployment

A serving job is a training job like any other: its start command is the server, its weights are the
checkpoints. Begin with `served_model`, which has the words, then `serving_job`.
"""
