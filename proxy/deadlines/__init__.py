"""Deadlines: the configuration section, and one value from queue to upstream."""
