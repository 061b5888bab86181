"""Chat completions for the writers of wires, and the events that they write."""

import json
from typing import Any

from cost.usage import Usage
from providers.wire import Event, decode_event
from proxy.parse.wires.wire import Dialect, Served, Tally

USAGE = Usage(
    input_tokens=100,
    cached_input_tokens=60,
    cache_write_tokens=10,
    cache_write_1h_tokens=4,
    output_tokens=7,
    reasoning_tokens=2,
    source="upstream",
)


def served(usage: Usage = USAGE) -> Served:
    return Served(
        request_id="req_1",
        target_id="t0",
        input_tokens=90,
        created_at=1_700_000_000,
        now_s=lambda: 1_700_000_005,
        tally=lambda: Tally(usage, "0.000006000", "0.000060000"),
    )


def chunk(delta: dict[str, Any], finish: str | None = None, **choice: Any) -> Event:
    body = {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]}
    return decode_event(json.dumps(body).encode(), "t0/a")


def completion(message: dict[str, Any], finish: str = "stop", **choice: Any) -> bytes:
    body = {"id": "c1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}]}
    return json.dumps(body).encode()


def streamed(dialect: Dialect, *events: Event, usage: Usage = USAGE) -> list[dict[str, Any]]:
    """The stream's events, each of whose names is its type, decoded."""
    writer = dialect.events(served(usage))
    data = b"".join(writer.render([event]) for event in events) + writer.last_words()
    return decoded(data)


def decoded(data: bytes) -> list[dict[str, Any]]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, _, payload = block.partition("\n")
        event = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found
