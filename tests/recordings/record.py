"""Records an engine's replies: `python -m tests.recordings.record http://127.0.0.1:8000 --model NAME --out tests/recordings/ENGINE`.

Each reply becomes a file as a server sends it, NAME.http: the status, the content type, an empty line, the body. What the engine does
not serve is recorded, too, as its refusal. Nothing secret is sent but the key in WEIGHBRIDGE_RECORD_KEY, and no header is kept.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

_ASK: Final = [{"role": "user", "content": "Say hello."}]
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_USAGE: Final = {"stream": True, "stream_options": {"include_usage": True}}
_CHAT: Final = "/v1/chat/completions"
ASKED: Final[dict[str, tuple[str, dict[str, Any] | None]]] = {
    "chat": (_CHAT, {"messages": _ASK, "max_tokens": 8, "temperature": 0}),
    "chat_stream": (_CHAT, {"messages": _ASK, "max_tokens": 8, "temperature": 0, **_USAGE}),
    "chat_stream_bare": (_CHAT, {"messages": _ASK, "max_tokens": 4, "temperature": 0, "stream": True}),
    "tool_stream": (
        _CHAT,
        {
            "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
            "tools": [_TOOL],
            "tool_choice": "required",
            "max_tokens": 64,
            "temperature": 0,
            **_USAGE,
        },
    ),
    "logprobs": (_CHAT, {"messages": _ASK, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 2}),
    "text": ("/v1/completions", {"prompt": "One two three", "max_tokens": 6, "temperature": 0}),
    "text_stream": ("/v1/completions", {"prompt": "One two three", "max_tokens": 6, "temperature": 0, **_USAGE}),
    "too_long": (_CHAT, {"messages": [{"role": "user", "content": "long " * 400_000}], "max_tokens": 4}),
    "bad_type": (_CHAT, {"messages": "no list", "max_tokens": 4}),
    "parts": (_CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}], "max_tokens": 4}),
    "unknown_model": (_CHAT, {"model": "nobody", "messages": _ASK, "max_tokens": 4}),
    "bad_value": (_CHAT, {"messages": _ASK, "max_tokens": 4, "temperature": -3}),
    "models": ("/v1/models", None),
    "metrics": ("/metrics", None),
}
"""Path and body (None: a GET) of each."""
_MOST_BYTES: Final = 1_000_000


def reply_to(base: str, model: str, path: str, body: dict[str, Any] | None) -> bytes:
    """The reply as a file has it. Raises OSError when nobody answers."""
    data = None if body is None else json.dumps({"model": model, **body}).encode()
    request = urllib.request.Request(base + path, data=data, headers={"content-type": "application/json"})  # noqa: S310
    key = os.environ.get("WEIGHBRIDGE_RECORD_KEY")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:  # noqa: S310
            status, kind, content = reply.status, reply.headers.get("content-type", ""), reply.read(_MOST_BYTES)
    except urllib.error.HTTPError as refused:
        status, kind, content = refused.code, refused.headers.get("content-type", ""), refused.read(_MOST_BYTES)
    return f"HTTP/1.1 {status}\ncontent-type: {kind}\n\n".encode() + bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the server's address without /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=tuple(ASKED), default=tuple(ASKED))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        path, body = ASKED[name]
        content = reply_to(options.base.rstrip("/"), options.model, path, body)
        (options.out / f"{name}.http").write_bytes(content)
        sys.stdout.write(f"{name}: {content.splitlines()[0].decode()}, {len(content):,} bytes\n")


if __name__ == "__main__":
    main()
