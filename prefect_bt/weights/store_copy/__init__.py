"""The store's copies of sources, which all hosts share."""
