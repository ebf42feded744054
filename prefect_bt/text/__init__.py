"""How spans of time, ranks, and text of other programs are written. Pure."""
