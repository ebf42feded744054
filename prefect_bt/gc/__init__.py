"""What no living job owns, on this machine and in its store: found, told, removed if asked.

Each room tells what it finds; nothing here decides for it whether somebody still needs a thing.
Whatever cannot be judged (a store that does not answer, a job that another machine may run) stays.
"""
