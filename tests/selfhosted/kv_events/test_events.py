"""vLLM's events on the wire: all its forms are read, and nothing else is believed."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.kv_events.events import (
    BlocksKept,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    Event,
    Unreadable,
    pieces,
    read_batch,
    read_message,
)
from tests.selfhosted.kv_events.engine import payload

HASHES = [b"\x01" * 32, b"\x02" * 32]
NAMES = (0x0101010101010101, 0x0202020202020202)
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": HASHES,
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [["salt"], None],
    "group_idx": 0,
    "session_id": "s",
}


def one(event: Any) -> Event | None:
    events = read_batch(payload([event])).events
    return events[0] if events else None


def test_version_0_32() -> None:
    """Events are maps with a type; fields that nobody here knows are passed over."""
    read = read_batch(
        payload(
            [STORED, {"type": "BlockRemoved", "block_hashes": HASHES, "medium": "GPU"}, {"type": "AllBlocksCleared"}]
        )
    )
    stored = BlocksStored(NAMES, None, ((1, 2), (3, 4)), (("salt",), ()), None)
    assert read.events == (stored, BlocksRemoved(NAMES), CacheCleared())


@pytest.mark.parametrize("medium", ["CPU", "cpu", "STORAGE"])
def test_caches_below_the_gpus(medium: str) -> None:
    """By hashes alone, as vLLM names them unless told otherwise, and with their tokens."""
    named = {**STORED, "medium": medium, "token_ids": [], "block_size": 0, "extra_keys": None}
    assert one(named) == BlocksKept(NAMES)
    told = one({**STORED, "medium": medium})
    assert isinstance(told, BlocksStored)
    assert (told.tokens, told.tier) == (((1, 2), (3, 4)), "below")
    assert one({"type": "BlockRemoved", "block_hashes": HASHES, "medium": medium}) == BlocksRemoved(NAMES, "below")


def test_older_versions() -> None:
    """Events were arrays with fewer fields, hashes whole numbers, also negative ones, and batches had no rank."""
    old = msgspec.msgpack.encode(
        [1.0, [["BlockStored", [7, -1], 5, [1, 2], 1, None], ["BlockRemoved", [7]], ["AllBlocksCleared"]]]
    )
    stored = BlocksStored((7, (1 << 64) - 1), 5, ((1,), (2,)), ((), ()), None)
    assert read_batch(old).events == (stored, BlocksRemoved((7,)), CacheCleared())


@pytest.mark.parametrize(
    ("changes", "adapter", "extras"),
    [
        ({"lora_id": 3}, "#3", ((), ())),
        ({"lora_id": 3, "lora_name": "sql", "extra_keys": [["sql", "salt"], ["sql"]]}, "sql", (("salt",), ())),
        ({"extra_keys": [[["picture", 0]], None]}, None, ((["picture", 0],), ())),
    ],
)
def test_what_else_a_block_depends_on(changes: dict[str, Any], adapter: str | None, extras: Any) -> None:
    """The adapter is told apart from salts and pictures."""
    found = one({**STORED, "extra_keys": None, **changes})
    assert isinstance(found, BlocksStored)
    assert (found.adapter, found.extras) == (adapter, extras)


@pytest.mark.parametrize(
    "event",
    [
        {**STORED, "group_idx": 1},
        {**STORED, "locality": "REMOTE"},
        {"type": "BlockRemoved", "block_hashes": HASHES, "medium": "STORAGE", "locality": "REMOTE"},
        {"type": "BlockPinned", "block_hashes": HASHES},
        ["BlockPinned", 1],
        {},
        [],
        5,
        None,
    ],
)
def test_what_is_passed_over(event: Any) -> None:
    """Other hosts' caches, layers that keep a part, and events that nobody here knows."""
    read = read_batch(payload([event, {"type": "AllBlocksCleared"}]))
    assert (read.events, read.passed_over) == ((CacheCleared(),), 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, 5]),
        b"\x91" * 5_000,
        payload([{**STORED, "block_size": 0}]),
        payload([{**STORED, "block_size": 3}]),
        payload([{**STORED, "token_ids": [1, 2, 3, -4]}]),
        payload([{**STORED, "token_ids": [1, 2, 3, 1 << 63]}]),
        payload([{**STORED, "block_hashes": "ab"}]),
        payload([{"type": "BlockRemoved"}]),
        payload([["BlockRemoved", [1.5]]]),
        payload(["BlockRemoved"]),
        payload([{"type": "BlockStored"}]).replace(b"BlockStored", b"BlockStore\xff"),
        payload([{**STORED, "medium": "GPU"}]).replace(b"GPU", b"GP\xff"),
    ],
)
def test_what_is_not_believed(data: bytes) -> None:
    """What is no batch, or has an event of a known kind that is not sound, is not believed at all."""
    with pytest.raises(Unreadable):
        read_batch(data)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Whatever comes, it is read or refused by name."""
    with contextlib.suppress(Unreadable):
        read_batch(data)


@pytest.mark.parametrize("frames", [[], [b""], [b"kv", b"1", b""], [b"a", b"b", b"c", b"d"], [b"x" * 8]])
def test_frames(frames: list[bytes]) -> None:
    """A message has a topic, a number of eight bytes and its batch; a replay's answer may lack the topic."""
    with pytest.raises(Unreadable):
        read_message(frames)
    number = (258).to_bytes(8, "big")
    assert read_message([b"kv", number, b"x"]).sequence == read_message([number, b"x"]).sequence == 258


def test_pieces() -> None:
    """A long event is cut, and each piece hangs on the one before."""
    whole = BlocksStored((1, 2, 3), 9, ((1,), (2,), (3,)), ((), (), ()), "sql")
    assert list(pieces([whole, CacheCleared()], 2)) == [
        BlocksStored((1, 2), 9, ((1,), (2,)), ((), ()), "sql"),
        BlocksStored((3,), 2, ((3,),), ((),), "sql"),
        CacheCleared(),
    ]
