"""The store's copies of sources, which all hosts share.

Begin with `copies`, which lists the keys; `shared_download` divides a download among hosts.
"""
