"""From committed checkpoints to a server that answers (§11).

    contents.py    what a checkpoint holds, from its manifest; shelves.py: those of a job, and
                   why one of them cannot be served
    choosing.py    which ones are served, by the rules of §11.2; bases.py: on which base model
    questions.py   what is asked of a person who left something out
    engines.py     the servers and their command lines
    project.py     the job that runs one, as a definition; truss_config.py: the same for truss
    embedded.py    the program that runs beside the checkpoints where `transformers serve` does

A serving job is a training job like any other: its start command is the server, its weights are the
checkpoints. `served.py` has the words.
"""
