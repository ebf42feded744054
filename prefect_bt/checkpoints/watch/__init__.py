"""Detect changes in a checkpoint directory, and decide which checkpoints are settled.

Begin with `watcher`; `scanner` reads names and stat, `inotify` reports changed paths, `stability`
decides how long a checkpoint must be quiet.
"""
