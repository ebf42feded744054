"""What frameworks write, one file a framework, and the decision whether to commit it.

Begin with `table`, which names the formats, and `decision`. A format's file has what its folders
look like, the files of each process, the file that ends a save and the files that point to the
newest checkpoint. `content` inspects one file, `inspector` reads the disk.
"""
