"""Where weights come from: one protocol and its adapters."""
