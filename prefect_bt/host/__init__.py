"""Facilities of this machine for nodes: folders, locks, processes, mounts, devices. Linux only.

The substrates, which launch and observe nodes, and the nodes share it; standard library only. Begin
with `state_folder`, which shows all files, and `job_lock`, which shows who owns a job.
"""
