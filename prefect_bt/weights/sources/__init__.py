"""Where weights come from. Begin with `protocol`, which has the table of adapters."""
