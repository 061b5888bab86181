"""Approximate rendering of a prompt for prefix caching: prompts that begin alike here begin alike in the engine.

No chat template is applied. The rendering only has to be the same for the same conversation, grow at its end when the
conversation does, and differ where the engine's own rendering differs.
"""

from hashlib import blake2b
from typing import Final
from zlib import crc32

import msgspec

from providers.wire import ChatRequest, Message

_ROOT_CHARS: Final = 4_096
"""Characters of each text that go into the conversation's root; texts that differ later share a root unless
their lengths differ."""
_ENDS_BYTES: Final = 16_384
_MARK_TIMES: Final = 96
"""Of 32 characters each: 3,072 characters are 768 tokens or so, which is what a picture usually takes."""
_INSTRUCTING: Final = frozenset({"system", "developer"})
_DEFINITIONS: Final = ("tools", "functions")
_TEXTS: Final = ("query", "input", "file")
_BARE: Final = Message(role="")
_NO_CALLS: Final = _BARE.tool_calls
_NO_CALL: Final = _BARE.function_call
"""The value of a message without calls in their place."""


def rendered(request: ChatRequest, *, most_bytes: int, salt: str = "") -> bytes:
    """Return the first `most_bytes` bytes of the rendered prompt. Renderings with different salts share no prefix."""
    # Templates put definitions of tools before the conversation.
    fields = request.fields
    begins = [bytes(fields[name]) for name in _DEFINITIONS if name in fields]
    parts: list[bytes] = [salt.encode(), b"\x00", *begins] if begins else []
    texts: list[str] = [] if begins else [salt, "\x00"]
    # At least so many bytes: a character has one or more.
    size = sum(map(len, begins))
    raw: list[_RawMessage] | None = None
    for place, message in enumerate(request.messages):
        text = message.content
        if text is not None and not isinstance(text, str):
            if any(part.text is None for part in text):
                # Images and sound are part of what is cached, and only the raw messages hold them.
                raw = raw or _decode_messages(bytes(fields["messages"]))
                text = _with_media(message, raw[place].content)
            else:
                text = _text(message)
        texts.append(f"\x01{message.role}\x02{text or ''}")
        size += len(texts[-1])
        if message.tool_calls is not _NO_CALLS or message.function_call is not _NO_CALL:
            calls = bytes(message.tool_calls) or bytes(message.function_call)
            parts += ("".join(texts).encode(errors="surrogatepass"), calls)
            texts = []
            size += len(calls)
        if size >= most_bytes:
            break
    rest = "".join(texts).encode(errors="surrogatepass")
    return (b"".join([*parts, rest]) if parts else rest)[:most_bytes]


def instructions(request: ChatRequest) -> bytes:
    """Return the instructions that precede the conversation: tool definitions and leading system messages, joined by NUL
    bytes. This is the order in which `rendered` begins.
    """
    parts = [bytes(request.fields[name]) for name in _DEFINITIONS if name in request.fields]
    for message in request.messages:
        if message.role not in _INSTRUCTING:
            break
        parts.append(_text(message).encode(errors="surrogatepass"))
    return b"\x00".join(parts)


def root_of(request: ChatRequest, *, salt: str = "") -> int:
    """Return the 32-bit checksum of the conversation's instructions and first message: stays the same as it grows, and
    in every process. Two that have one by chance only share a home.
    """
    parts = [salt.encode()]
    if request.operation != "chat":
        # Whatever stands first, such as the texts to embed or the query to rank by.
        parts += [bytes(request.fields[name])[:_ROOT_CHARS] for name in _TEXTS if name in request.fields]
    for message in request.messages:
        text = _text(message)
        parts += (b"%d\x00" % len(text), text[:_ROOT_CHARS].encode(errors="surrogatepass"))
        if message.role not in _INSTRUCTING:
            break
    return crc32(b"".join(parts))


class _RawMessage(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()


_decode_messages: Final = msgspec.json.Decoder(list[_RawMessage]).decode
_decode_parts: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _with_media(message: Message, raw: msgspec.Raw) -> str:
    """Return the texts with a mark for each picture or sound between them, about as long as a text of as many tokens. The mark is a
    checksum of both ends of its part, as the whole may have megabytes.
    """
    texts: list[str] = []
    parts = message.content if isinstance(message.content, list) else ()
    for part, each in zip(parts, _decode_parts(bytes(raw)), strict=True):
        if part.text is not None:
            texts.append(part.text)
            continue
        found = bytes(each)
        digest = blake2b(found[:_ENDS_BYTES], digest_size=16, key=len(found).to_bytes(8, "big"))
        digest.update(found[-_ENDS_BYTES:])
        texts.append("\x03" + digest.hexdigest() * _MARK_TIMES)
    return "".join(texts)


def _text(message: Message) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in content or ())
