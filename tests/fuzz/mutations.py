"""What strangers might send: bytes near to sound ones. All of it is drawn from one generator, so a number replays it."""

import base64
import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec

Form = Literal["bytes", "json", "msgpack", "token"]
"""How a seed is built, so that what it holds is changed too, and not only its letters."""

MOST_BYTES: Final = 65_536
_MOST_STEPS: Final = 6
_ODD_BYTES: Final = (
    *(b"", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n\r\n"),
    *(b'"', b"\\", b'\\"', b"\\ud83d", b"\\u0000", b"{", b"}", b"[", b"]", b"[" * 2_000, b'{"a":' * 2_000, b",", b":"),
    *(b"null", b"true", b"NaN", b"Infinity", b"-0", b"1e999", b"1" * 5_000, b"-1", b"0.1", b"9223372036854775808"),
    *(b"18446744073709551616", b"data:", b"data: [DONE]\n\n", b"--", b"- ", b"&a ", b"*a", b"!!python/object", b"<<: "),
    *(
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xd9",
        b"\xc7\x08\xff",
        b"%00",
        b"\xd9\xa3",
        b"\xe2\x80\xa8",
    ),
)
_ODD_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.5, 1e308, 1e-320),
    *(
        "",
        " ",
        "0",
        "-1",
        "null",
        "auto",
        "\x00",
        "é",
        "😀",
        "٣",
        "\ud83d",
        "x" * 3_000,
        "1" * 5_000,
        "2026-13-45",
        "{}",
        "[]",
        '{"a":' * 2_000,
        "[" * 2_000,
    ),
    *([], {}, [[]], [None], {"": None}, {"type": "text"}, [{"type": "text", "text": 1}], {"a": {"a": {"a": []}}}),
)


def _deep() -> Any:
    value: Any = "x"
    for _ in range(400):
        value = [value]
    return value


def mutated(chance: random.Random, seeds: Sequence[bytes], form: Form) -> bytes:
    """Return bytes near to one of the seeds."""
    data = chance.choice(seeds)
    if form == "token":
        data = _token(chance, data)
    elif form != "bytes" and chance.random() < 0.6:
        return _tree(chance, data, form)[:MOST_BYTES]
    for _ in range(chance.randrange(_MOST_STEPS)):
        data = chance.choice(_STEPS)(chance, data, seeds)
    return data[:MOST_BYTES]


def _place(chance: random.Random, data: bytes) -> tuple[int, int]:
    start = chance.randint(0, len(data))
    return start, min(len(data), start + chance.choice((0, 1, 1, 2, 4, 16, 200)))


def _put(chance: random.Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, end = _place(chance, data)
    return data[:start] + chance.choice(_ODD_BYTES) + data[end:]


def _flip(chance: random.Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, _ = _place(chance, data)
    return data[:start] + bytes([chance.randrange(256)]) + data[start + 1 :]


def _cut(chance: random.Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, end = _place(chance, data)
    return data[:start] + data[end:] if chance.random() < 0.7 else data[:start]


def _double(chance: random.Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, end = _place(chance, data)
    return data[:end] + data[start:end] * chance.choice((1, 1, 3, 60)) + data[end:]


def _splice(chance: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = chance.choice(seeds)
    return data[: _place(chance, data)[0]] + other[_place(chance, other)[0] :]


def _number(chance: random.Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    digits = [index for index, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if not digits:
        return data
    at = chance.choice(digits)
    return (
        data[:at] + chance.choice((b"-1", b"0", b"1e400", b"99999999999999999999", b".5", b"\xd9\xa3")) + data[at + 1 :]
    )


_STEPS: Final[tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...]] = (
    _put,
    _flip,
    _cut,
    _double,
    _splice,
    _number,
)


def _tree(chance: random.Random, data: bytes, form: Form) -> bytes:
    """Change what the seed holds: a value or a name of it, in any depth."""
    try:
        value = json.loads(data) if form == "json" else msgspec.msgpack.decode(data)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return _put(chance, data, ())
    for _ in range(chance.randint(1, 4)):
        value = _changed(chance, value)
    try:
        return json.dumps(value).encode() if form == "json" else msgspec.msgpack.encode(value)
    except (ValueError, RecursionError, OverflowError, TypeError):
        return data


def _changed(chance: random.Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return _deep() if chance.random() < 0.02 else chance.choice(_ODD_VALUES)
    return _changed_list(chance, value) if isinstance(value, list) else _changed_object(chance, value)


def _changed_list(chance: random.Random, value: list[Any]) -> list[Any]:
    at, what = chance.randrange(len(value)), chance.random()
    if what < 0.15:
        return [*value[:at], *value[at + 1 :]]
    if what < 0.3:
        return [*value, value[at]]
    return [*value[:at], _changed(chance, value[at]), *value[at + 1 :]]


def _changed_object(chance: random.Random, value: dict[Any, Any]) -> dict[Any, Any]:
    name, what = chance.choice([*value]), chance.random()
    if what < 0.1:
        return {key: each for key, each in value.items() if key != name}
    if what < 0.2:
        return {**value, chance.choice([*value, "", "type", "x-tier", "\x00"]): value[name]}
    return {**value, name: _changed(chance, value[name])}


def _token(chance: random.Random, data: bytes) -> bytes:
    """Change what stands in one part of a token that is sealed as `part.part.part`."""
    parts = data.split(b".")
    at = chance.randrange(len(parts))
    try:
        inner = base64.urlsafe_b64decode(parts[at] + b"=" * (-len(parts[at]) % 4))
    except ValueError:
        return data
    parts[at] = base64.urlsafe_b64encode(_tree(chance, inner, "json")).rstrip(b"=")
    return b".".join(parts)


def pieces(data: bytes) -> list[bytes]:
    """Cut the bytes as a network might: the places hang on the bytes alone, so a replay has the same."""
    chance = random.Random(len(data))
    cuts = sorted({0, len(data), *(chance.randint(0, len(data)) for _ in range(6))})
    return [data[start:end] for start, end in pairwise(cuts)]
