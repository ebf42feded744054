"""Where weights come from: one protocol and its adapters.

Begin with `protocol`, which has the table of adapters, then `folder`, the shortest of them.
"""
