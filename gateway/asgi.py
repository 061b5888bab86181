"""The outermost ASGI application: inference goes straight to the request line, everything else through FastAPI.

The line uses nothing of FastAPI's routing and dependency solving: it reads the body within its limits and writes the
reply itself.
"""

from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.wires.chat.dialect import CHAT, EMBEDDINGS
from proxy.wires.messages.wire import COUNT_TOKENS, MESSAGES
from proxy.wires.responses.wire import INPUT_TOKENS, RESPONSES

_WIRES: Final = {wire.path: wire for wire in (CHAT, EMBEDDINGS, MESSAGES, COUNT_TOKENS, RESPONSES, INPUT_TOKENS)}


class AsgiApp:
    """Wraps the FastAPI application `app`, which holds the lifespan and every plain route."""

    def __init__(self, app: ASGIApp, state: Any) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["method"] == "POST" and (wire := _WIRES.get(scope["path"])) is not None:
            await self.state.line.serve(wire, scope, receive, send)
        else:
            await self.app(scope, receive, _named(send))


def _named(send: Send) -> Send:
    """Adds `x-request-id` to replies of FastAPI routes; the line writes its own, which its ledger entries share."""

    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, new_request_id().encode())]
        await send(message)

    return send_named
