"""Parser of vLLM's KV events (0.32, and the forms of older versions and of SGLang). Pure.

A message has three frames: a topic, a sequence number of 8 bytes, and msgpack: `[ts, events, data_parallel_rank?]`. An
event is a map with its name under `type`; in older versions it was an array whose first element is the name. Unknown
fields and events are skipped, and fields that older versions lack have defaults.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from settings.decoding import DECODE_ERRORS


class Unreadable(Exception):
    """A message is malformed and is rejected as a whole."""


SEQUENCE_BYTES: Final = 8
END: Final = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""The sequence number that marks the end of a replay."""
_MASK: Final = (1 << 64) - 1
_HASH_BYTES: Final = 8
_MOST_BLOCK_TOKENS: Final = 65_536
_MOST_TOKEN: Final = (1 << 63) - 1
_FRAMES: Final = 3
# Of msgpack: fixarray, array 16 and array 32.
_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})


Tier = Literal["gpu", "below"]
"""The GPU's cache, or one that the engine loads it from again: the host's memory, a disk."""


class BlocksStored(msgspec.Struct, frozen=True):
    """Consecutive blocks of one prompt that were stored in a cache."""

    hashes: tuple[int, ...]
    parent: int | None
    """Hash of the block before the first; None at the beginning of a prompt."""
    tokens: tuple[tuple[int, ...], ...]
    """Token ids of each block."""
    extras: tuple[tuple[Any, ...], ...]
    """The other inputs of each block's hash without the adapter: images and, for the first block, the cache salt."""
    adapter: str | None
    tier: Tier = "gpu"


class BlocksKept(msgspec.Struct, frozen=True):
    """Blocks that were stored in a cache below the GPU's, by their hashes alone."""

    hashes: tuple[int, ...]


class BlocksRemoved(msgspec.Struct, frozen=True):
    """Blocks that were removed from a cache."""

    hashes: tuple[int, ...]
    tier: Tier = "gpu"


class CacheCleared(msgspec.Struct, frozen=True):
    """The whole cache was emptied."""


Event = BlocksStored | BlocksKept | BlocksRemoved | CacheCleared


class Message(msgspec.Struct, frozen=True):
    """An undecoded batch with its sequence number."""

    sequence: int
    payload: bytes


class Batch(msgspec.Struct, frozen=True):
    """The events of one message that concern the engine's caches."""

    events: tuple[Event, ...]
    passed_over: int
    """Number of skipped events: of unknown kinds, of other hosts' caches, and of layers that keep a part of a prompt only."""
    rank: int | None = None
    """Data-parallel rank whose cache it tells of, by the engine; None where it says none."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    rank: msgspec.Raw = msgspec.Raw(b"\xc0")


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
_ranks: Final = msgspec.msgpack.Decoder(int)
_anything: Final = msgspec.msgpack.Decoder()


def read_message(frames: Sequence[bytes]) -> Message:
    """Parse the frames of a message, or those of a replay's answer after their empty one. Raises Unreadable."""
    if len(frames) not in {_FRAMES, _FRAMES - 1} or len(frames[-2]) != SEQUENCE_BYTES:
        raise Unreadable("no message of three frames with a sequence number")
    return Message(int.from_bytes(frames[-2], "big"), frames[-1])


def read_batch(payload: bytes) -> Batch:
    """Decode a batch of events. Raises Unreadable."""
    try:
        batch = _batches.decode(payload)
        read = [_parse_event(bytes(raw)) for raw in batch.events]
    except DECODE_ERRORS as failure:
        raise Unreadable(f"no batch of events: {str(failure)[:200]}") from failure
    events = tuple(each for each in read if each is not None)
    return Batch(events, len(read) - len(events), _rank_of(bytes(batch.rank)))


def _rank_of(raw: bytes) -> int | None:
    """Return the rank; None for anything else that a version may have in its place."""
    try:
        return _ranks.decode(raw)
    except DECODE_ERRORS:
        return None


def pieces(events: Iterable[Event], most: int) -> Iterator[Event]:
    """Split events so that none has more than `most` blocks."""
    for event in events:
        if not isinstance(event, BlocksStored) or len(event.hashes) <= most:
            yield event
            continue
        for start in range(0, len(event.hashes), most):
            end = start + most
            parent = event.parent if start == 0 else event.hashes[start - 1]
            yield BlocksStored(
                event.hashes[start:end],
                parent,
                event.tokens[start:end],
                event.extras[start:end],
                event.adapter,
                event.tier,
            )


def _parse_event(raw: bytes) -> Event | None:
    try:
        decoded = (_arrays if raw[:1] and raw[0] in _ARRAYS else _maps).decode(raw)
    except msgspec.ValidationError:
        # An event of another kind is passed over. One of a known kind that is not sound makes the batch unreadable.
        if _event_name(raw) in _KNOWN_EVENTS:
            raise
        return None
    if isinstance(decoded, _Cleared):
        return CacheCleared()
    if decoded.group_idx not in {None, 0} or decoded.locality == "REMOTE":
        return None
    tier: Tier = "gpu" if decoded.medium in {None, "GPU"} else "below"
    if isinstance(decoded, _Removed):
        return BlocksRemoved(tuple(map(_short_hash, decoded.block_hashes)), tier)
    if tier == "below" and not decoded.token_ids:
        # vLLM names offloaded blocks by their hashes, unless `self_describing_kv_events` is set.
        return BlocksKept(tuple(map(_short_hash, decoded.block_hashes)))
    return _parse_stored(decoded, tier)


def _parse_stored(event: _Stored, tier: Tier) -> BlocksStored:
    size, count = event.block_size, len(event.block_hashes)
    if not 0 < size <= _MOST_BLOCK_TOKENS or len(event.token_ids) != count * size:
        raise msgspec.ValidationError("blocks and tokens do not match")
    if any(not 0 <= token <= _MOST_TOKEN for token in event.token_ids):
        raise msgspec.ValidationError("no token has such a number")
    tokens = tuple(tuple(event.token_ids[start : start + size]) for start in range(0, count * size, size))
    return BlocksStored(
        hashes=tuple(map(_short_hash, event.block_hashes)),
        parent=None if event.parent_block_hash is None else _short_hash(event.parent_block_hash),
        tokens=tokens,
        extras=_extras(event, count),
        adapter=event.lora_name or (None if event.lora_id is None else f"#{event.lora_id}"),
        tier=tier,
    )


def _extras(event: _Stored, count: int) -> tuple[tuple[Any, ...], ...]:
    if event.extra_keys is None or len(event.extra_keys) != count:
        return ((),) * count
    # vLLM lists the adapter among the extra keys; here it is a field of its own.
    return tuple(tuple(key for key in keys or () if key != event.lora_name) for keys in event.extra_keys)


def _event_name(raw: bytes) -> str | None:
    found = _anything.decode(raw)
    if isinstance(found, dict):
        found = found.get("type")
    elif isinstance(found, list):
        found = found[0] if found else None
    return found if isinstance(found, str) else None


def _short_hash(block_hash: bytes | int) -> int:
    """Return the hash shortened to 64 bits. Hashes are uniformly distributed, so any 64 bits will do."""
    if isinstance(block_hash, int):
        return block_hash & _MASK
    return int.from_bytes(block_hash[:_HASH_BYTES], "big")


_KNOWN_EVENTS: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
