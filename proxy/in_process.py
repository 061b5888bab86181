"""Requests that come from this gateway itself: a caller that is known, a body that is there, and a reply that is kept."""

import asyncio
from typing import Final

from starlette.types import Message, Receive, Scope

from proxy.batch.answering import Answered, Asked
from proxy.context import RequestContext

_PRIORITIES: Final = {-1: b"low", 0: b"normal", 1: b"high"}
_RETRY_AFTER: Final = b"retry-after-ms"
OVERLOADED: Final = Answered(status=503, body=b"{}", code="overloaded", retry_after_s=1.0)
"""The reply to what is not even begun, because callers outside need this process more."""


class KeptReply:
    """Takes a reply as a server would, and keeps it."""

    def __init__(self) -> None:
        self.status = 0
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Takes the next ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = dict(message["headers"])
        else:
            self._body.append(message.get("body", b""))

    def answered(self, context: RequestContext) -> Answered:
        """The reply, with what its attempts used and cost."""
        answering = context.answering
        usage = None if answering is None or answering.settled is None else answering.settled.usage
        costs = [each.settled.cost_nanousd for each in context.attempts if each.settled is not None]
        told = self._headers.get(_RETRY_AFTER, b"")
        return Answered(
            status=self.status,
            body=b"".join(self._body),
            code=context.error_code or "",
            retry_after_s=int(told) / 1000 if told.isdigit() else None,
            input_tokens=0 if usage is None else usage.input_tokens,
            cached_tokens=0 if usage is None else usage.cached_input_tokens,
            output_tokens=0 if usage is None else usage.output_tokens,
            reasoning_tokens=0 if usage is None else usage.reasoning_tokens or 0,
            cost_nanousd=None if None in costs else sum(cost or 0 for cost in costs),
        )


def scope_of(asked: Asked) -> Scope:
    """The ASGI scope of a request of the batch tier."""
    headers = [
        (b"x-tier", b"batch"),
        (b"x-priority", _PRIORITIES[asked.priority]),
        (b"content-length", str(len(asked.body)).encode()),
    ]
    return {"type": "http", "method": "POST", "path": "", "headers": headers}


def receive_of(asked: Asked) -> Receive:
    """Gives the body; its caller never hangs up."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.get_running_loop().create_future()
        given = True
        return {"type": "http.request", "body": asked.body, "more_body": False}

    return receive
