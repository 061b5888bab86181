"""Applies one engine's events in order; missed ones are replayed, or else the engine's known blocks are dropped.

Uses no sockets: messages come as frames, and a replay as an iterator of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Literal

import msgspec

from selfhosted.kv_events.chains import Chains
from selfhosted.kv_events.events import (
    END,
    Batch,
    BlocksKept,
    BlocksStored,
    CacheCleared,
    Event,
    Message,
    Unreadable,
    pieces,
    read_batch,
    read_message,
)
from selfhosted.kv_events.sequence import Sequence as Numbers

KvResult = Literal[
    "batch",
    "stored",
    "kept",
    "removed",
    "cleared",
    "passed_over",
    "garbage",
    "gap",
    "replayed",
    "dropped",
    "restart",
    "learned",
    "unseen",
    "failed",
    "known",
    "busy",
]
"""Label of an event count. `batch`: messages applied; `stored`, `removed`: blocks; `kept`: blocks in a cache below the GPU's; `cleared`: whole caches;
`passed_over`: events of other hosts or kinds; `garbage`: malformed messages; `gap`: missed messages; `replayed`: gaps
filled by a replay; `dropped`: all known blocks of a replica dropped; `restart`: another engine, or a lost connection.
The others are outcomes of samples (`sampling.SampleResult`, with `busy` for too many at once)."""

_BLOCKS_AT_ONCE: Final = 128
"""Blocks applied before other tasks may run: about half a millisecond."""
_MOST_REPLAYED: Final = 20_000
_REPLAY_S: Final = 10.0

Replay = Callable[[int], AsyncGenerator[Sequence[bytes], None]]
"""Function that requests the messages from a number on; the last one has the number `END`."""


class KvObserver:
    """An observer of counts of events; this base class ignores them. Implementations must be quick and never raise."""

    def count_kv(self, pool: str, result: KvResult, count: int = 1) -> None: ...


class KvState(msgspec.Struct, kw_only=True):
    """State of the subscription to one replica's events, for operators."""

    state: Literal["absent", "waiting", "live"] = "waiting"
    """`absent`: this process cannot subscribe. `waiting`: nothing has come yet. `live`: something has."""
    why: str = ""
    batches: int = 0
    gaps: int = 0
    garbage: int = 0
    restarts: int = 0
    blocks: int = 0
    """Number of engine blocks known to be cached."""


class KvStates(msgspec.Struct, frozen=True, kw_only=True):
    """A process's subscriptions to a pool's KV events, by replica. Told now and then, for operators."""

    pool: str
    states: dict[str, KvState]


class Follower:
    """The subscriber to the events of one replica. The owner of the connection calls `live` and `lost`."""

    def __init__(
        self,
        name: str,
        chains: Chains,
        count: Callable[[KvResult, int], None],
        replay: Replay | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        """`rank`: the data-parallel rank whose events these should be; None for those of a whole engine."""
        self._name = name
        self._rank = rank
        self._chains = chains
        self._count = count
        self._replay = replay
        self._numbers = Numbers()
        self.state = KvState()

    async def live(self, frames: Sequence[bytes]) -> None:
        """Handle a message of the engine's publisher."""
        try:
            message = read_message(frames)
        except Unreadable as failure:
            self._reject(failure)
            return
        self.state.state = "live"
        seen = self._numbers.see(message.sequence)
        if seen == "known":
            return
        if seen == "restart":
            self._reset_numbers()
            # Another engine's cache is empty, so the inferred blocks go too.
            self._chains.cleared(self._name)
            seen = self._numbers.see(message.sequence)
        if seen in {"first", "gap"}:
            if seen == "gap":
                self.state.gaps += 1
                self._count("gap", 1)
            await self._fill_gap(message.sequence, is_first=seen == "first")
            if self._numbers.wanted > message.sequence:
                # The replay contained this message too.
                return
        await self._apply(message)

    def lost(self) -> None:
        """Handle a lost connection. Another engine, with an empty cache, may answer next."""
        if self.state.state == "live":
            self.state.state = "waiting"
            self._chains.forget(self._name)
        self._reset_numbers()

    def _reset_numbers(self) -> None:
        if self._numbers.wanted:
            self.state.restarts += 1
            self._count("restart", 1)
        self._numbers.restarted()

    async def _fill_gap(self, until: int, *, is_first: bool) -> None:
        """Fill the gap before this number by a replay, or else drop what was known.

        Nothing is dropped for the first message of a connection without a replay: blocks from before it are unknown
        anyway.
        """
        if self._replay is not None and until - self._numbers.wanted <= _MOST_REPLAYED:
            if await self._try_replay(self._replay, until, is_first=is_first):
                self._count("replayed", 1)
                return
            is_first = False
        if not is_first:
            self._drop_blocks()
        self._numbers.taken(until - 1)

    async def _try_replay(self, replay: Replay, until: int, *, is_first: bool) -> bool:
        """Apply a replay up to `until`. Returns True when nothing is missing any more."""
        try:
            async with asyncio.timeout(_REPLAY_S), contextlib.aclosing(replay(self._numbers.wanted)) as told:
                async for frames in told:
                    if len(frames) > 1 and frames[-2] == END:
                        break
                    message = read_message(frames)
                    if message.sequence > self._numbers.wanted:
                        if not is_first:
                            return False
                        self._numbers.taken(message.sequence - 1)
                    is_first = False
                    if message.sequence == self._numbers.wanted:
                        await self._apply(message)
        except (Unreadable, TimeoutError, OSError) as failure:
            self.state.why = f"the replay failed ({type(failure).__name__})"
            return False
        return self._numbers.wanted >= until

    async def _apply(self, message: Message) -> None:
        self._numbers.taken(message.sequence)
        try:
            batch = self._read(message)
        except Unreadable as failure:
            # It may have reported removed blocks.
            self._reject(failure)
            self._drop_blocks()
            return
        if batch.passed_over:
            self._count("passed_over", batch.passed_over)
        for event in pieces(batch.events, _BLOCKS_AT_ONCE):
            self._chains.apply(self._name, event)
            self._count(_result_of(event), len(getattr(event, "hashes", (0,))))
            # Requests come first: no more than one piece at a time.
            await asyncio.sleep(0)
        self.state.batches += 1
        self.state.blocks = self._chains.held(self._name)
        self._count("batch", 1)

    def _read(self, message: Message) -> Batch:
        batch = read_batch(message.payload)
        # vLLM counts each rank of a dense model as 0; only the port tells them apart.
        if self._rank is not None and batch.rank not in {None, 0, self._rank}:
            raise Unreadable(f"rank {batch.rank} tells its events where those of rank {self._rank} should be")
        return batch

    def _reject(self, failure: Unreadable) -> None:
        self.state.garbage += 1
        self.state.why = str(failure)
        self._count("garbage", 1)

    def _drop_blocks(self) -> None:
        self._count("dropped", 1)
        self._chains.forget(self._name)


def _result_of(event: Event) -> KvResult:
    if isinstance(event, CacheCleared):
        return "cleared"
    if isinstance(event, BlocksKept):
        return "kept"
    if isinstance(event, BlocksStored):
        return "stored" if event.tier == "gpu" else "kept"
    return "removed"
