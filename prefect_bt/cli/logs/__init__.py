"""The command `logs`, and following a job that runs elsewhere.

Begin with `show`; `follow` waits for new lines and for the end, `lines` formats them.
"""
