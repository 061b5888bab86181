"""One request on any of the three wires on which callers talk to a model, and what came of it."""

import json
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

import aiohttp
import msgspec

Wire = Literal["chat", "responses", "messages"]
WIRES: Final[tuple[Wire, ...]] = ("chat", "responses", "messages")
_PATHS: Final[Mapping[Wire, str]] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
_FIRST: Final[Mapping[Wire, bytes]] = {
    "chat": b'"content":" w0"',
    "responses": b"response.output_text.delta",
    "messages": b"text_delta",
}
"""What the first token of a scripted answer looks like in a stream."""
_LAST: Final[Mapping[Wire, bytes]] = {
    "chat": b"data: [DONE]",
    "responses": b"event: response.completed",
    "messages": b"event: message_stop",
}
_MAX_TOKENS: Final = 64


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller got. Times are of this machine's monotonic clock."""

    wire: Wire
    stream: bool
    status: int
    """0 when no reply came."""
    trouble: str = ""
    """Why it is no answer: the error's code or type, or how the connection ended; empty when it is one."""
    target: str = ""
    sent_at: float
    first_at: float
    """The first token of a stream, or the whole of an answer that is not streamed."""
    over_at: float

    @property
    def good(self) -> bool:
        return self.status == 200 and not self.trouble

    @property
    def first_s(self) -> float:
        return self.first_at - self.sent_at

    @property
    def told(self) -> str:
        """Its outcome in a word or two."""
        return "200" if self.good else f"{self.status or 'no reply'} {self.trouble}".strip()


def body_of(wire: Wire, text: str, *, model: str, stream: bool) -> bytes:
    said = [{"role": "user", "content": text}]
    asked: dict[str, Any] = {"model": model, "stream": stream}
    match wire:
        case "chat":
            asked |= {"messages": said, "max_tokens": _MAX_TOKENS}
        case "responses":
            asked |= {"input": text, "store": False, "max_output_tokens": _MAX_TOKENS}
        case "messages":
            asked |= {"messages": said, "max_tokens": _MAX_TOKENS}
    return msgspec.json.encode(asked)


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    text: str,
    *,
    wire: Wire = "chat",
    model: str = "auto",
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Asks the gateway at `url`, to the end of its answer. Raises nothing: whatever goes wrong is told in the answer."""
    sent_at = first_at = time.monotonic()
    status, trouble, target, said = 0, "", "", b""
    sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **(headers or {})}
    try:
        asked = body_of(wire, text, model=model, stream=stream)
        async with session.post(f"{url}{_PATHS[wire]}", data=asked, headers=sent) as reply:
            target = reply.headers.get("x-weighbridge-target", "")
            seen = not stream
            async for piece in reply.content.iter_any():
                said += piece
                if not seen and _FIRST[wire] in said:
                    first_at, seen = time.monotonic(), True
            status = reply.status
            trouble = _trouble(wire, status, said, stream=stream)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        trouble = type(error).__name__
    over_at = time.monotonic()
    return Answer(
        wire=wire,
        stream=stream,
        status=status,
        trouble=trouble,
        target=target,
        sent_at=sent_at,
        first_at=first_at if stream and first_at > sent_at else over_at,
        over_at=over_at,
    )


def _trouble(wire: Wire, status: int, said: bytes, *, stream: bool) -> str:
    """Why this is no whole answer; empty where it is one."""
    if status != 200:
        return _code(said) or "without a word"
    if not stream:
        return "" if b" w0" in said else f"odd: {said[:80]!r}"
    if _LAST[wire] in said:
        return "" if _FIRST[wire] in said else "no token"
    failed = next((line for line in said.splitlines() if line.startswith(b"data: ") and b'"error"' in line), b"")
    return f"broke off: {_code(failed.removeprefix(b'data: ')) or said[-80:]!r}"


def _code(said: bytes) -> str:
    try:
        error = json.loads(said)["error"]
        return str(error.get("code") or error["type"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
