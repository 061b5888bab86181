"""Every reply names its request: `x-request-id`, ours and never the caller's."""

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"


def new_request_id() -> str:
    """96 random bits, so that an id tells nothing and is not met twice."""
    return "req_" + secrets.token_hex(12)


class RequestIds:
    """Middleware for the plain routes. The line writes its own, because its ledger entries carry it."""

    def __init__(self, app: ASGIApp, *, line_path: str) -> None:
        self.app = app
        self.line_path = line_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        on_the_line = scope["type"] != "http" or (scope["path"] == self.line_path and scope["method"] == "POST")
        await self.app(scope, receive, send if on_the_line else _named(send))


def _named(send: Send) -> Send:
    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (HEADER, new_request_id().encode())]
        await send(message)

    return send_named
