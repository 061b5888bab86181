"""What can keep a question from its answer. Both are kinds of OSError, as a database's failures are to whoever asks."""


class LinkDown(OSError):
    """The other end is not there, or went before it answered."""


class NotAnswered(OSError):
    """The other end could not answer; the message is the kind of its error."""
