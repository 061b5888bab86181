"""The processor time of a wire: a request read, a whole answer and a chunk of a stream written, each beside chat's.

python -m benchmarks.wire_cost [--rounds 40]

The wires take turns, round by round, so that whatever else the machine does meets all of them; of each the least counts.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, Final

from cost.usage import Usage
from providers.wire import Event, decode_event
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Served, Tally, Wire

_CHUNKS: Final = 500
_READS: Final = 60
_TURNS: Final = 6
_WORDS: Final = "The truck stands on the scale, and its driver waits. " * 8
_HEADERS: Final = RequestHeaders()
_USAGE: Final = Usage(input_tokens=100, output_tokens=500, source="upstream")


def _served() -> Served:
    return Served(
        request_id="req_1",
        target_id="t0",
        input_tokens=90,
        created_at=1_700_000_000,
        now_s=lambda: 1_700_000_005,
        tally=lambda: Tally(_USAGE, "0.000006000", "0.000060000"),
    )


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(body, separators=(",", ":")).encode()


def _stream() -> list[bytes]:
    words = [_chunk({"content": f" word{number}"}) for number in range(_CHUNKS)]
    return [_chunk({"role": "assistant", "content": ""}), *words, _chunk({}, "stop")]


def _whole() -> bytes:
    message = {"role": "assistant", "content": _WORDS, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 500, "total_tokens": 600}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps({**body, "usage": usage}, separators=(",", ":")).encode()


def _bodies() -> dict[str, tuple[Wire, bytes]]:
    """Return one conversation of about 800 tokens on each wire."""
    talk = [("user" if turn % 2 == 0 else "assistant", f"{turn}: {_WORDS}") for turn in range(_TURNS + 1)]
    messages = [{"role": role, "content": said} for role, said in talk]
    bodies: dict[str, tuple[Wire, dict[str, Any]]] = {
        "chat": (CHAT, {"messages": [{"role": "system", "content": "Weigh."}, *messages]}),
        "completions": (COMPLETIONS, {"prompt": "\n".join(said for _, said in talk)}),
        "messages": (MESSAGES, {"max_tokens": 500, "system": "Weigh.", "messages": messages}),
        "responses": (RESPONSES, {"instructions": "Weigh.", "input": messages}),
    }
    return {
        name: (wire, json.dumps({"model": "auto", "stream": True, **body}).encode())
        for name, (wire, body) in bodies.items()
    }


def _read(wire: Wire, body: bytes) -> float:
    began = time.process_time()
    for _ in range(_READS):
        wire.read(body, _HEADERS, lambda _: True)
    return (time.process_time() - began) / _READS


def _answer(wire: Wire, body: bytes, whole: bytes) -> float:
    dialect = wire.read(body, _HEADERS, lambda _: True).dialect
    began = time.process_time()
    for _ in range(_READS):
        dialect.whole(whole, _served())
    return (time.process_time() - began) / _READS


def _write(wire: Wire, body: bytes, batches: list[list[Event]]) -> float:
    writer = wire.read(body, _HEADERS, lambda _: True).dialect.events(_served())
    began = time.process_time()
    for batch in batches:
        writer.render(batch)
    spent = time.process_time() - began
    writer.last_words()
    return spent / len(batches)


def _decode(stream: list[bytes]) -> float:
    began = time.process_time()
    for payload in stream:
        decode_event(payload, "t0/a")
    return (time.process_time() - began) / len(stream)


def main() -> None:
    """Print microseconds a request and a chunk."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=40)
    rounds: int = asked.parse_args().rounds
    stream, bodies = _stream(), _bodies()
    batches = [[decode_event(payload, "t0/a")] for payload in stream]
    whole = _whole()
    measures: dict[str, Callable[[], float]] = {"decode a chunk": lambda: _decode(stream)}
    for name, (wire, body) in bodies.items():
        measures[f"{name}: read a request"] = lambda wire=wire, body=body: _read(wire, body)  # type: ignore[misc]
        measures[f"{name}: write a whole answer"] = lambda wire=wire, body=body: _answer(wire, body, whole)  # type: ignore[misc]
        measures[f"{name}: write a chunk"] = lambda wire=wire, body=body: _write(wire, body, batches)  # type: ignore[misc]
    spent: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            spent[name].append(measure())
    for name, found in spent.items():
        print(f"{name:32} {min(found) * 1e6:8.2f} µs")


if __name__ == "__main__":
    main()
