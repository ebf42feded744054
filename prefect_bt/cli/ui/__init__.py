"""What all commands share: the terminal, tables, options, how values are typed."""
