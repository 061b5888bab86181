"""Requests and calls for the tests of this folder."""

from typing import Any

import msgspec

from providers.target import Deployment, DeploymentKind, Target
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import ChatRequest, Event, Message


def chat_request(**fields: Any) -> ChatRequest:
    """A request whose raw fields say the same as its typed ones."""
    fields = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]} | fields
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return ChatRequest(
        fields=raw,
        model=fields["model"],
        messages=msgspec.json.decode(raw["messages"], type=list[Message]),
        stream=bool(fields.get("stream")),
        include_usage=bool((fields.get("stream_options") or {}).get("include_usage")),
    )


def deployment(kind: DeploymentKind = "openai", **changes: Any) -> Deployment:
    facts: dict[str, Any] = {
        "deployment_id": "t/main",
        "target_id": "t",
        "kind": kind,
        "upstream_model": "ok",
        "base_url": "http://127.0.0.1:9/v1",
    }
    return Deployment(**(facts | changes))


def target(*names: str) -> Target:
    return Target(
        target_id="t",
        provider="p",
        tiers=frozenset({"interactive"}),
        price=None,
        max_context_tokens=1_000,
        max_output_tokens=100,
        capabilities=frozenset(),
        capability=0.5,
        routing_weight=1.0,
        deployments=tuple(deployment(deployment_id=f"t/{name}") for name in names),
    )


def upstream_call(to: Deployment, request: ChatRequest | None = None, **changes: Any) -> UpstreamCall:
    facts: dict[str, Any] = {
        "deployment": to,
        "request": request or chat_request(stream=True),
        "request_id": "req-1",
        "connect_timeout_s": 5.0,
        "idle_timeout_s": 5.0,
        "total_timeout_s": 10.0,
    }
    return UpstreamCall(**(facts | changes))


async def read_all(stream: UpstreamStream) -> list[Event]:
    """Reads to the end and closes, as a well-behaved caller does."""
    events: list[Event] = []
    try:
        while (batch := await stream.read()) is not None:
            assert batch
            events += batch
    finally:
        await stream.aclose()
    return events


async def talk(upstream: Upstream, call: UpstreamCall) -> list[Event]:
    return await read_all(await upstream.open(call))


def tokens_of(events: list[Event]) -> int:
    """The upstream's events with generated content."""
    return sum(event.token if event.run is None else event.run.tokens for event in events)


def text_of(events: list[Event]) -> str:
    """The generated text, of chunks or of a whole answer."""
    found = ""
    for event in events:
        for choice in msgspec.json.decode(event.payload)["choices"]:
            found += (choice.get("delta") or choice.get("message") or {}).get("content") or ""
    return found
