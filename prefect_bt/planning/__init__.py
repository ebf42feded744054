"""Pure: a definition and a context become a gang plan, or every reason why not."""
