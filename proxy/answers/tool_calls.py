"""Tool calls of an answer as sent: every value is untrusted until somebody has looked at it."""

from typing import Any

import msgspec


class Function(msgspec.Struct):
    """The arguments are text that should be JSON."""

    name: Any = None
    arguments: Any = None


class Call(msgspec.Struct):
    """In a stream the pieces of one call share an index."""

    index: Any = None
    function: Function | None = None
