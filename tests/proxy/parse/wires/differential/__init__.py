"""Whatever an upstream does, every wire tells the same of it."""
