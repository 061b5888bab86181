"""A prompt as pieces in the order in which providers cache it: tools, instructions, messages. Keyed digests and sizes, and no text.

Marks of caches are no part of a piece: clients move them on with each turn, and a provider reads the same prompt.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final

import msgspec

from providers.wire import ChatRequest, Message
from selfhosted.prefixes.shape import masked

_DEFINITIONS: Final = ("tools", "functions")
_INSTRUCTING: Final = frozenset({"system", "developer"})
_SETTINGS: Final = ("tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "thinking")
"""Fields of which some providers make a part of the prompt, or keep a cache for each."""
MASKED_BYTES: Final = 16_384
"""Length of instructions, and of the first message, in which times and ids are looked for."""
_MOST_TOOLS: Final = 256
_MOST_SENTENCES: Final = 512
_MOST_MESSAGES: Final = 1_024
_MEDIUM_BYTES: Final = 3_072
"""Size of a picture or a sound, whose bytes say little of its tokens: about what its usual tokens would have as text."""
_REMEMBERED: Final = 512
"""Tools and instructions that are remembered with their pieces, as most prompts have those of the one before."""
_SENTENCES_REMEMBERED: Final = 8_192
_LONG_LINE: Final = 256
_SENTENCE: Final = re.compile(rb".{0,1024}?[.!?;] |.{1,1024}", re.DOTALL)
_SAID: Final = rb'"cache_control"\s*:\s*(?:\{[^{}]{0,200}\}|null)'
_MARK: Final = re.compile(rb",\s*" + _SAID + rb"|" + _SAID + rb"\s*,?")
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_any: Final = msgspec.json.Decoder().decode


class _Part:
    """Pieces in a row: digests, digests without what varies, the kinds of that, and sizes in bytes."""

    __slots__ = ("digests", "kinds", "plain", "sizes")

    def __init__(self) -> None:
        self.digests, self.plain = array("Q"), array("Q")
        self.kinds, self.sizes = bytearray(), array("I")

    def add(self, digest: int, plain: int, kinds: int, size: int) -> None:
        self.digests.append(digest)
        self.plain.append(plain)
        self.kinds.append(kinds)
        self.sizes.append(size)


class Pieces(msgspec.Struct, frozen=True):
    """The pieces of one prompt."""

    digests: "array[int]"
    sizes: "array[int]"
    plain: "array[int]"
    """Of tools, instructions and the first message: digests of them without what varies, or in one order of their fields."""
    kinds: bytes
    """What was masked in them, as bits of `selfhosted.prefixes.shape.KINDS`."""
    tools: int
    """Number of pieces that are tools."""
    system: int
    """Number of pieces behind those that are instructions."""
    size: int
    settings: int
    """Digest of what is said beside the prompt."""


class PieceMaker:
    """Takes prompts apart. `key` is secret, at most 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._parts: OrderedDict[int, _Part] = OrderedDict()
        self._plain: dict[int, tuple[int, int]] = {}
        """Sentences without what varies: where one varies, the others are those of the prompt before."""

    def pieces(self, request: ChatRequest) -> Pieces:
        """Return a prompt's pieces; takes up to some milliseconds for a megabyte."""
        instructing = _instructing(request.messages)
        tools = self._remembered(b"\x00".join(_definitions(request)), self._tools)
        system = self._remembered(b"\x00".join(map(_text, request.messages[:instructing])), self._sentences)
        whole = _Part()
        for part in (tools, system):
            whole.digests += part.digests
            whole.plain += part.plain
            whole.kinds += part.kinds
            whole.sizes += part.sizes
        self._add_messages(whole, request, instructing)
        return Pieces(
            digests=whole.digests,
            sizes=whole.sizes,
            plain=whole.plain,
            kinds=bytes(whole.kinds),
            tools=len(tools.digests),
            system=len(system.digests),
            size=sum(whole.sizes),
            settings=self._digest(b"\x00".join(bytes(request.fields.get(name, b"")) for name in _SETTINGS)),
        )

    def _remembered(self, text: bytes, taken: Callable[[bytes], _Part]) -> _Part:
        name = self._digest(text)
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = taken(text)
            if len(self._parts) > _REMEMBERED:
                self._parts.popitem(last=False)
        else:
            self._parts.move_to_end(name)
        return part

    def _tools(self, text: bytes) -> _Part:
        part = _Part()
        for definitions in text.split(b"\x00") if text else ():
            for tool in _raws(definitions)[:_MOST_TOOLS]:
                raw = _unmarked(bytes(tool))
                ordered = msgspec.json.encode(_any(raw), order="sorted")
                part.add(self._digest(raw), self._digest(ordered), 0, len(raw))
        return part

    def _sentences(self, text: bytes) -> _Part:
        part = _Part()
        at = 0
        for sentence in _split(text):
            if len(part.digests) == _MOST_SENTENCES:
                break
            at += len(sentence)
            digest = self._digest(sentence)
            plain, kinds = self._without(sentence, digest) if at <= MASKED_BYTES else (digest, 0)
            part.add(digest, plain, kinds, len(sentence))
        if at < len(text):
            rest = self._digest(text[at:])
            part.add(rest, rest, 0, len(text) - at)
        return part

    def _without(self, sentence: bytes, digest: int) -> tuple[int, int]:
        """Return the digest of a sentence without what varies, and the kinds of that."""
        found = self._plain.get(digest)
        if found is None:
            if len(self._plain) >= _SENTENCES_REMEMBERED:
                self._plain.clear()
            plain, kinds = masked(sentence)
            found = self._plain[digest] = (self._digest(plain), kinds)
        return found

    def _add_messages(self, whole: _Part, request: ChatRequest, instructing: int) -> None:
        raw: list[msgspec.Raw] | None = None
        for place, message in enumerate(request.messages[instructing:], instructing):
            if place - instructing >= _MOST_MESSAGES:
                break
            text, size = b"%b\x02%b" % (message.role.encode(), _text(message)), 0
            if _has_media(message):
                raw = raw or _raws(bytes(request.fields["messages"]))
                # Without the name of the field that clients write before or behind others.
                text += _unmarked(bytes(raw[place]))
                size = _MEDIUM_BYTES
            calls = bytes(message.tool_calls) or bytes(message.function_call)
            size += len(_text(message)) + len(calls)
            digest = self._digest(text + b"\x03" + calls)
            whole.digests.append(digest)
            whole.sizes.append(size)
            if place == instructing:
                plain, kinds = masked(text[:MASKED_BYTES])
                whole.plain.append(self._digest(plain + text[MASKED_BYTES:] + b"\x03" + calls))
                whole.kinds.append(kinds)

    def _digest(self, part: bytes) -> int:
        return int.from_bytes(blake2b(part, key=self._key, digest_size=8).digest(), "big")


def _definitions(request: ChatRequest) -> Iterator[bytes]:
    return (bytes(request.fields[name]) for name in _DEFINITIONS if name in request.fields)


def _instructing(messages: Iterable[Message]) -> int:
    """Return the number of instructions that stand first."""
    count = 0
    for message in messages:
        if message.role not in _INSTRUCTING:
            break
        count += 1
    return count


def _split(text: bytes) -> Iterator[bytes]:
    """Yield a text's lines, and the sentences of long ones, which make up the text."""
    for line in text.splitlines(keepends=True):
        if len(line) <= _LONG_LINE:
            yield line
        else:
            yield from _SENTENCE.findall(line)


def _text(message: Message) -> bytes:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text or "" for part in content or ())
    return text.encode(errors="surrogatepass")


def _has_media(message: Message) -> bool:
    return isinstance(message.content, list) and any(part.text is None for part in message.content)


def _unmarked(raw: bytes) -> bytes:
    return _MARK.sub(b"", raw) if b'"cache_control"' in raw else raw
