"""What changes in a checkpoint directory, and what has stopped changing.

Begin with `watcher`; `scanner` reads names and stat, `inotify` says where to look, `stability`
decides how long is quiet enough.
"""
