"""Sample what the commands of a node use, in a thread of its agent. Begin with `sampler`."""
