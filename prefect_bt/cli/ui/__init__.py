"""What all commands share: the terminal, tables, options, how values are typed.

Begin with `terminal`, through which commands print and ask.
"""
