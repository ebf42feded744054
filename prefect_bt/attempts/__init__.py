"""One attempt of a gang: its lifecycle, its failure, and whether another attempt follows.

Begin with `gang_policy`, which launches, watches and stops all nodes; `lifecycle` prepares an
attempt and records its end; `failure_causes` and `retry_policy` decide what a failure means.
"""
