"""The queue of jobs: what each waits for, what running jobs hold, and which job starts next.

docs/capacity.md describes the rules.
"""
