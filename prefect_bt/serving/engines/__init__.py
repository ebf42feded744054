"""Inference servers: their command lines, keys, and the programs that start them."""
