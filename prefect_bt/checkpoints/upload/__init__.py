"""From a stable checkpoint on a disk to a committed one in the store.

Begin with `uploader`, the loop; `commit` handles one checkpoint, `transfer` its files;
`upload_status` publishes the progress through the store.
"""
