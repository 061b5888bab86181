"""Errors between a request and the end of its reply, whatever the request was."""


class ConnectionFailed(Exception):
    """A connection that was refused, unresolved, not trusted, or not made in time. Nothing of a request has left."""


class ConnectionTimeout(ConnectionFailed):
    """A wait that was too long: to connect, or for one of as many connections as there may be."""


class NotHttp(Exception):
    """An answer that is no HTTP reply, or one whose head is too large."""


class ReplyUnbounded(NotHttp):
    """A reply goes on and on beside its body, or with tiny pieces of it."""


class ReplyLost(Exception):
    """The connection broke after the request was sent: before the reply or in its middle."""


class ReplyTimeout(Exception):
    """The reply took longer than the call may."""


class ReplySilent(ReplyTimeout):
    """The reply fell silent for longer than it may."""
