"""A prompt as its engine will see it, as far as caching goes: what begins alike here begins alike there.

It is no chat template. It only has to be the same for the same conversation, grow at its end when the conversation does,
and differ where the engine's own rendering differs.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from providers.wire import ChatRequest, Message

_ROOT_CHARS: Final = 4_096
"""Of each text that names a conversation; longer ones differ before that, or by their length."""
_INSTRUCTING: Final = frozenset({"system", "developer"})
_DEFINITIONS: Final = ("tools", "functions")


def rendered(request: ChatRequest, *, most_bytes: int, salt: str = "") -> bytes:
    """The first `most_bytes` bytes. Those with another salt share nothing."""
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
    """What comes before the conversation: definitions of tools and the system prompt, as far as `rendered` begins with it."""
    parts = [bytes(request.fields[name]) for name in _DEFINITIONS if name in request.fields]
    for message in request.messages:
        if message.role not in _INSTRUCTING:
            break
        parts.append(_text(message).encode(errors="surrogatepass"))
    return b"\x00".join(parts)


def root_of(request: ChatRequest, *, salt: str = "") -> int:
    """64 bits that name the conversation: what it was told at first, and what was asked first. The same in each process."""
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
        # Pictures and sound are part of what is cached, and only the raw messages hold them.
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
