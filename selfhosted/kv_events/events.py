"""vLLM's KV events, as they come over the wire (0.32, and the forms of older versions and of SGLang). Pure.

A message has three frames: a topic, a sequence number of 8 bytes, and msgpack: `[ts, events, data_parallel_rank?]`. An
event is a map with its name under `type`; in older versions it was an array whose first element is the name. Fields and events
that are not known are passed over, and fields that older versions lack have defaults.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from selfhosted.kv_events.kv_event_errors import Unreadable

SEQUENCE_BYTES: Final = 8
END: Final = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""Stands for the sequence number where a replay ends."""
_MASK: Final = (1 << 64) - 1
_HASH_BYTES: Final = 8
_MOST_BLOCK_TOKENS: Final = 65_536
_MOST_TOKEN: Final = (1 << 63) - 1
_FRAMES: Final = 3
# Of msgpack: fixarray, array 16 and array 32.
_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})


class BlocksStored(msgspec.Struct, frozen=True):
    """Blocks of one prompt that were put into the GPU's cache, one after the other."""

    hashes: tuple[int, ...]
    parent: int | None
    """The hash of the block before the first; None for a prompt's beginning."""
    tokens: tuple[tuple[int, ...], ...]
    """Of each block."""
    extras: tuple[tuple[Any, ...], ...]
    """Of each block: what else its hash depends on, without the adapter: pictures, and of the first one the salt."""
    adapter: str | None


class BlocksRemoved(msgspec.Struct, frozen=True):
    """Blocks that are not in the GPU's cache any more."""

    hashes: tuple[int, ...]


class CacheCleared(msgspec.Struct, frozen=True):
    """The cache is empty."""


Event = BlocksStored | BlocksRemoved | CacheCleared


class Message(msgspec.Struct, frozen=True):
    """A batch with its place in the sequence, not decoded yet."""

    sequence: int
    payload: bytes


class Batch(msgspec.Struct, frozen=True):
    """What one message tells of the GPU's cache."""

    events: tuple[Event, ...]
    passed_over: int
    """Events that nobody here knows, and those of other places than the GPU."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _StoredArray(_Stored, tag="BlockStored", array_like=True):
    pass


class _RemovedArray(_Removed, tag="BlockRemoved", array_like=True):
    pass


class _ClearedArray(_Cleared, tag="AllBlocksCleared", array_like=True):
    pass


_batches: Final = msgspec.msgpack.Decoder(_Batch)
_maps: Final = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared)
_arrays: Final = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_anything: Final = msgspec.msgpack.Decoder()


def read_message(frames: Sequence[bytes]) -> Message:
    """The frames of a message, or those of a replay's answer after their empty one. Raises Unreadable."""
    if len(frames) not in {_FRAMES, _FRAMES - 1} or len(frames[-2]) != SEQUENCE_BYTES:
        raise Unreadable("no message of three frames with a sequence number")
    return Message(int.from_bytes(frames[-2], "big"), frames[-1])


def read_batch(payload: bytes) -> Batch:
    """Raises Unreadable."""
    try:
        batch = _batches.decode(payload)
        read = [_event(bytes(raw)) for raw in batch.events]
    except (msgspec.DecodeError, RecursionError) as failure:
        raise Unreadable(f"no batch of events: {str(failure)[:200]}") from failure
    events = tuple(each for each in read if each is not None)
    return Batch(events, len(read) - len(events))


def pieces(events: Iterable[Event], most: int) -> Iterator[Event]:
    """The same events, none with more than so many blocks."""
    for event in events:
        if not isinstance(event, BlocksStored) or len(event.hashes) <= most:
            yield event
            continue
        for start in range(0, len(event.hashes), most):
            end = start + most
            parent = event.parent if start == 0 else event.hashes[start - 1]
            yield BlocksStored(
                event.hashes[start:end], parent, event.tokens[start:end], event.extras[start:end], event.adapter
            )


def _event(raw: bytes) -> Event | None:
    try:
        decoded = (_arrays if raw[:1] and raw[0] in _ARRAYS else _maps).decode(raw)
    except msgspec.ValidationError:
        # An event of another kind is passed over. One of a known kind that is not sound makes the batch unreadable.
        if _name(raw) in _KNOWN:
            raise
        return None
    if isinstance(decoded, _Cleared):
        return CacheCleared()
    if decoded.medium not in {None, "GPU"} or decoded.group_idx not in {None, 0} or decoded.locality == "REMOTE":
        return None
    if isinstance(decoded, _Removed):
        return BlocksRemoved(tuple(map(_short, decoded.block_hashes)))
    return _stored(decoded)


def _stored(event: _Stored) -> BlocksStored:
    size, count = event.block_size, len(event.block_hashes)
    if not 0 < size <= _MOST_BLOCK_TOKENS or len(event.token_ids) != count * size:
        raise msgspec.ValidationError("blocks and tokens do not match")
    if any(not 0 <= token <= _MOST_TOKEN for token in event.token_ids):
        raise msgspec.ValidationError("no token has such a number")
    tokens = tuple(tuple(event.token_ids[start : start + size]) for start in range(0, count * size, size))
    return BlocksStored(
        hashes=tuple(map(_short, event.block_hashes)),
        parent=None if event.parent_block_hash is None else _short(event.parent_block_hash),
        tokens=tokens,
        extras=_extras(event, count),
        adapter=event.lora_name or (None if event.lora_id is None else f"#{event.lora_id}"),
    )


def _extras(event: _Stored, count: int) -> tuple[tuple[Any, ...], ...]:
    if event.extra_keys is None or len(event.extra_keys) != count:
        return ((),) * count
    # The adapter stands among them too, and is told apart already.
    return tuple(tuple(key for key in keys or () if key != event.lora_name) for keys in event.extra_keys)


def _name(raw: bytes) -> str | None:
    found = _anything.decode(raw)
    if isinstance(found, dict):
        found = found.get("type")
    elif isinstance(found, list):
        found = found[0] if found else None
    return found if isinstance(found, str) else None


def _short(block_hash: bytes | int) -> int:
    """64 bits of it: a hash is as good as random, so the first will do."""
    if isinstance(block_hash, int):
        return block_hash & _MASK
    return int.from_bytes(block_hash[:_HASH_BYTES], "big")


_KNOWN: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
