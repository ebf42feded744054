"""From committed checkpoints to a server that answers.

    checkpoint_contents.py    what a checkpoint holds, from its manifest; servable_checkpoints.py:
    those of a job, and
                   why one of them cannot be served
    checkpoint_selection.py    which ones are served; base_model.py: on which
    base model missing_options.py   what is asked of a person who left something out
    engines/command_lines.py     the servers and their command lines serving_job.py     the job that
    runs one, as a definition; engines/truss_config.py: the same for truss
    engines/transformers_server.py    the program that runs beside the checkpoints where
    `transformers serve` does

A serving job is a training job like any other: its start command is the server, its weights are the
checkpoints. `served_model.py` has the words.
"""
