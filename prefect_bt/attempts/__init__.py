"""One attempt of a gang: its lifecycle, its failure, and whether another one follows."""
