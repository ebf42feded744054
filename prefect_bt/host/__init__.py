"""What this machine offers a node: folders, locks, processes, mounts, devices. Linux only.

Shared by the substrates, which launch and observe nodes, and by the node itself; standard library
only. Begin with `state_folder`, which draws all files, and `job_lock`, which says who owns a job.
"""
