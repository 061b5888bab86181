"""Errors in an engine's KV events."""


class Unreadable(Exception):
    """A message is malformed and is rejected as a whole."""
