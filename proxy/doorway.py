"""The outermost ASGI application: inference goes straight to the line, everything else through FastAPI.

FastAPI's routing and dependency solving cost more than the line's own stages together, and the line
uses none of it: it reads the body within its limits and writes the reply itself.
"""

import secrets
import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CHAT_PATH: Final = "/v1/chat/completions"
EMBEDDINGS_PATH: Final = "/v1/embeddings"
REQUEST_ID_HEADER: Final = b"x-request-id"


def new_request_id() -> str:
    """Milliseconds since the epoch, then 64 random bits. Ours, never the caller's.

    Ids that grow with time are a third cheaper to insert into the ledger's index than random ones.
    """
    return f"req_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


class Doorway:
    """Wraps the FastAPI application `app`, which holds the lifespan and every plain route."""

    def __init__(self, app: ASGIApp, state: Any) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == CHAT_PATH and scope["method"] == "POST":
            await scope["state"]["gateway"].line.chat(scope, receive, send)
        elif scope["path"] == EMBEDDINGS_PATH and scope["method"] == "POST":
            await scope["state"]["gateway"].line.embeddings(scope, receive, send)
        else:
            await self.app(scope, receive, _named(send))


def _named(send: Send) -> Send:
    """Every reply carries `x-request-id`; the line writes its own, because its ledger entries do, too."""

    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, new_request_id().encode())]
        await send(message)

    return send_named
