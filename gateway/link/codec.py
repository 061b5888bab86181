"""The format of the link: frames of one message each, and the messages' names.

A frame is its length (four bytes, big-endian) and a MessagePack array `[kind, number, name, body]`. `kind` says whether
the body is told, asked, the answer to the question of this number, or why there is none; `name` is the message's class.
Both ends run the same version, because a supervisor starts both: there is no negotiation, and a name that is not known
is ignored.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""The longest frame; a tuning with groups of all teams is a few megabytes."""
_LENGTH: Final = struct.Struct(">I")

Kind = Literal[0, 1, 2, 3]
TOLD: Final = 0
ASKED: Final = 1
ANSWERED: Final = 2
REFUSED: Final = 3

Answer = TypeVar("Answer")


class Question(msgspec.Struct, Generic[Answer], frozen=True):
    """A message that is answered; a subclass is declared as `class ReadX(Question[list[X]], frozen=True)`."""


class FrameTooLarge(Exception):
    """A frame longer than MAX_FRAME_BYTES; the connection is of no use any more."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One frame's content."""

    kind: int
    number: int
    name: str
    body: msgspec.Raw


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Envelope).decode


class Frames:
    """The frames in what a socket gives, cut out one by one."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[Envelope]:
        """Return the messages that `data` completes. Raises FrameTooLarge, and msgspec.DecodeError or UnicodeDecodeError for what is no message."""
        kept = self._kept
        kept += data
        found: list[Envelope] = []
        at = 0
        while len(kept) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(kept, at)
            if length > MAX_FRAME_BYTES:
                raise FrameTooLarge(f"a frame of {length} bytes")
            end = at + _LENGTH.size + length
            if len(kept) < end:
                break
            found.append(_decode(bytes(kept[at + _LENGTH.size : end])))
            at = end
        if at:
            del kept[:at]
        return found


def frame(kind: Kind, number: int, name: str, body: Any) -> bytes:
    """Return one frame. Raises FrameTooLarge."""
    content = _encode(Envelope(kind, number, name, msgspec.Raw(_encode(body))))
    if len(content) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"{name} of {len(content)} bytes")
    return _LENGTH.pack(len(content)) + content


class Vocabulary:
    """The messages that an end understands, by the names of their classes."""

    def __init__(self, messages: Iterable[type[msgspec.Struct]]) -> None:
        self._decoders: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
            each.__name__: msgspec.msgpack.Decoder(each) for each in messages
        }
        self._answers: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
            each.__name__: msgspec.msgpack.Decoder(_answer_of(each)) for each in messages if issubclass(each, Question)
        }

    def message(self, envelope: Envelope) -> msgspec.Struct | None:
        """Decode a message or a question; None for an unknown name. Raises msgspec.DecodeError or UnicodeDecodeError."""
        decoder = self._decoders.get(envelope.name)
        return None if decoder is None else decoder.decode(envelope.body)

    def answer(self, envelope: Envelope) -> Any:
        """Return the answer to a question. Raises msgspec.DecodeError, UnicodeDecodeError, and KeyError for a name that is not known."""
        return self._answers[envelope.name].decode(envelope.body)


def _answer_of(question: type[Question[Any]]) -> Any:
    for base in getattr(question, "__orig_bases__", ()):
        found = getattr(base, "__args__", ())
        if found:
            return found[0]
    raise TypeError(f"{question.__name__} does not say what it is answered with")
