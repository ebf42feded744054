"""Download of files into a staging tree.

Begin with `engine`; `readers` chooses the store or the source, `open_file` verifies the bytes.
"""
