"""The store's copies of sources, which all hosts share.

Begin with `copies`, which draws the keys; `claims` and `single_flight` let one host download.
"""
