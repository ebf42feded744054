"""Commands about checkpoints, and the browser of their files."""
