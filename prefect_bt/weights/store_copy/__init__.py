"""The store's copies of sources. Begin with `copies`, which lists the keys."""
