"""Weights that are not on this machine yet: where their bytes come from, and their transfer.

Begin with `engine`; `readers` choose the store or upstream, `open_file` keeps and verifies bytes.
"""
