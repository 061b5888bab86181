"""Approximate rendering of a prompt for prefix caching: prompts that begin alike here begin alike in the engine.

No chat template is applied. The rendering only has to be the same for the same conversation, grow at its end when the
conversation does, and differ where the engine's own rendering differs.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from providers.wire import ChatRequest, Message

_ROOT_CHARS: Final = 4_096
"""Characters of each text that are hashed into the conversation's root; texts that differ later share a root unless
their lengths differ."""
_INSTRUCTING: Final = frozenset({"system", "developer"})
_DEFINITIONS: Final = ("tools", "functions")


def rendered(request: ChatRequest, *, most_bytes: int, salt: str = "") -> bytes:
    """The first `most_bytes` bytes of the rendered prompt. Renderings with different salts share no prefix."""
    parts: list[bytes] = [salt.encode(), b"\x00"]
    # Templates put definitions of tools before the conversation.
    parts += [bytes(request.fields[name]) for name in _DEFINITIONS if name in request.fields]
    size = sum(map(len, parts))
    for part in _pieces(request):
        parts.append(part)
        size += len(part)
        if size >= most_bytes:
            break
    return b"".join(parts)[:most_bytes]


def instructions(request: ChatRequest) -> bytes:
    """The instructions that precede the conversation: tool definitions and leading system messages, joined by NUL
    bytes. This is the order in which `rendered` begins.
    """
    parts = [bytes(request.fields[name]) for name in _DEFINITIONS if name in request.fields]
    for message in request.messages:
        if message.role not in _INSTRUCTING:
            break
        parts.append(_text(message).encode(errors="surrogatepass"))
    return b"\x00".join(parts)


def root_of(request: ChatRequest, *, salt: str = "") -> int:
    """64-bit hash of the conversation's instructions and first message: stays the same as it grows, and in every
    process.
    """
    digest = blake2b(salt.encode(), digest_size=8)
    if request.operation == "embeddings":
        digest.update(bytes(request.fields["input"])[:_ROOT_CHARS])
    for message in request.messages:
        text = _text(message)
        digest.update(b"%d\x00" % len(text))
        digest.update(text[:_ROOT_CHARS].encode(errors="surrogatepass"))
        if message.role not in _INSTRUCTING:
            break
    return int.from_bytes(digest.digest(), "little")


def _pieces(request: ChatRequest) -> Iterator[bytes]:
    if not all(_is_text(message) for message in request.messages):
        # Images and audio are part of what is cached, and only the raw messages hold them.
        yield bytes(request.fields["messages"])
        return
    for message in request.messages:
        calls = bytes(message.tool_calls) or bytes(message.function_call)
        yield f"\x01{message.role}\x02{_text(message)}".encode(errors="surrogatepass") + calls


def _is_text(message: Message) -> bool:
    return not isinstance(message.content, list) or all(part.text is not None for part in message.content)


def _text(message: Message) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in content or ())
