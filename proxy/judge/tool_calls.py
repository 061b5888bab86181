"""Tool calls as an upstream sent them: every field is untrusted and unvalidated."""

from typing import Any

import msgspec


class Function(msgspec.Struct):
    """The function of a tool call. `arguments` is text that should be a JSON object."""

    name: Any = None
    arguments: Any = None


class Call(msgspec.Struct):
    """A tool call, or one piece of it: in a stream the pieces of one call share an index."""

    index: Any = None
    function: Function | None = None
