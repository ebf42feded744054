"""One attempt of a gang: its lifecycle, its failure, and whether another attempt follows.

Begin with `gang`, which launches, watches and stops all nodes; `lifecycle` prepares an attempt and
records its end; `diagnosis` and `retry_policy` decide what a failure means.
"""
