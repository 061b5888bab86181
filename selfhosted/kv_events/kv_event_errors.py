"""What can be wrong with what an engine tells of its cache."""


class Unreadable(Exception):
    """Nothing of this message is believed."""
