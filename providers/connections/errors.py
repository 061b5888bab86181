"""What can go wrong between a request and the end of its reply, whatever the request was."""


class ConnectionFailed(Exception):
    """There is no connection: refused, unresolved, not trusted, or not made in time. Nothing of a request has left."""


class ConnectionTimeout(ConnectionFailed):
    """Connecting, or waiting for one of as many connections as there may be, took too long."""


class NotHttp(Exception):
    """What came is no HTTP reply, or one whose head is too large."""


class ReplyUnbounded(NotHttp):
    """A reply goes on and on beside its body, or with tiny pieces of it."""


class ReplyLost(Exception):
    """The connection broke after the request was sent: before the reply or in its middle."""


class ReplyTimeout(Exception):
    """The reply took longer than the call may."""


class ReplySilent(ReplyTimeout):
    """The reply fell silent for longer than it may."""
