"""Commands about mirrored weights."""
