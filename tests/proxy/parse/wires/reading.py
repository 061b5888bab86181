"""Bodies read by a wire, for tests: what a chat target would be sent, and what is kept beside it."""

import json
from typing import Any

import msgspec

from providers.wire import ChatRequest
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.wire import Understood, Wire


def understood(wire: Wire, body: dict[str, Any], *models: str, **headers: str) -> Understood:
    """The body as this wire reads it where the configuration has these models."""
    return wire.read(
        json.dumps(body, separators=(",", ":")).encode(), RequestHeaders(**headers), lambda name: name in models
    )


def read(wire: Wire, body: dict[str, Any], *models: str, **headers: str) -> ChatRequest:
    return understood(wire, body, *models, **headers).request


def chat_fields(request: ChatRequest) -> dict[str, Any]:
    """The decoded fields that a target which speaks chat is sent."""
    return {name: msgspec.json.decode(raw) for name, raw in request.fields.items()}
