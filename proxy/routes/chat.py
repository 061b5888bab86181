"""POST /v1/chat/completions."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.gateway import gateway_of
from proxy.line import Line

router = APIRouter()

PATH = "/v1/chat/completions"

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["model", "messages"],
                    "properties": {
                        "model": {"type": "string", "description": "`auto`, an alias or a target"},
                        "messages": {"type": "array", "items": {"type": "object"}},
                        "stream": {"type": "boolean"},
                        "x-tier": {"type": "string", "enum": ["interactive", "batch"]},
                        "x-team-id": {"type": "string"},
                    },
                    "additionalProperties": True,
                }
            }
        },
    }
}


class _OnTheLine(Response):
    """A response that is the line itself: it reads the body, calls the upstream and writes the reply."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.line.chat(scope, receive, send)


@router.post(PATH, openapi_extra=_BODY, response_class=Response, tags=["inference"])
async def chat_completions(request: Request) -> Response:
    """OpenAI's chat completions; `model: auto` lets the gateway choose."""
    return _OnTheLine(gateway_of(request).line)
