"""One engine's events, taken over in order; what is missed is asked for again, or its knowledge is dropped.

Knows no sockets: messages come as frames, and a replay as an iterator of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Literal

import msgspec

from selfhosted.kv_events.chains import Chains
from selfhosted.kv_events.events import END, BlocksStored, Message, pieces, read_batch, read_message
from selfhosted.kv_events.kv_event_errors import Unreadable
from selfhosted.kv_events.sequence import Sequence as Numbers

KvResult = Literal[
    "batch",
    "stored",
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
"""`batch`: messages that were taken over; `stored`, `removed`: blocks; `cleared`: whole caches; `passed_over`: events of
other places or kinds; `garbage`: messages that cannot be read; `gap`: some were missed; `replayed`: and told again;
`dropped`: all knowledge of a replica was; `restart`: it is another engine, or the connection was lost. The others are
about prompts whose tokens were asked for (`sampling.SampleResult`, with `busy` for too many at once)."""

_BLOCKS_AT_ONCE: Final = 128
"""About half a millisecond."""
_MOST_REPLAYED: Final = 20_000
_REPLAY_S: Final = 10.0

Replay = Callable[[int], AsyncGenerator[Sequence[bytes], None]]
"""The messages from a number on, and at last one whose number is `END`."""


class KvObserver:
    """Is told what came; this one counts nothing. Must be quick and never raise."""

    def count_kv(self, pool: str, result: KvResult, count: int = 1) -> None: ...


class KvState(msgspec.Struct, kw_only=True):
    """How it stands with one replica's events, for people."""

    state: Literal["absent", "waiting", "live"] = "waiting"
    """`absent`: this process cannot listen. `waiting`: nothing has come yet. `live`: something has."""
    why: str = ""
    batches: int = 0
    gaps: int = 0
    garbage: int = 0
    restarts: int = 0
    blocks: int = 0
    """Engine blocks that are known to be there."""


class Follower:
    """Of one replica. `live` and `lost` are called by whoever has the connection."""

    def __init__(
        self, name: str, chains: Chains, count: Callable[[KvResult, int], None], replay: Replay | None = None
    ) -> None:
        self._name = name
        self._chains = chains
        self._count = count
        self._replay = replay
        self._numbers = Numbers()
        self.state = KvState()

    async def live(self, frames: Sequence[bytes]) -> None:
        """A message from the engine's publisher."""
        try:
            message = read_message(frames)
        except Unreadable as failure:
            self._garbage(failure)
            return
        self.state.state = "live"
        seen = self._numbers.see(message.sequence)
        if seen == "known":
            return
        if seen == "restart":
            self._restarted()
            # Another engine's cache is empty, whatever was inferred of it.
            self._chains.cleared(self._name)
            seen = self._numbers.see(message.sequence)
        if seen in {"first", "gap"}:
            if seen == "gap":
                self.state.gaps += 1
                self._count("gap", 1)
            await self._fill(message.sequence, is_first=seen == "first")
            if self._numbers.wanted > message.sequence:
                # The replay told this one too.
                return
        await self._take(message)

    def lost(self) -> None:
        """The connection was. Whoever answers next may be another engine that holds nothing."""
        if self.state.state == "live":
            self.state.state = "waiting"
            self._chains.forget(self._name)
        self._restarted()

    def _restarted(self) -> None:
        if self._numbers.wanted:
            self.state.restarts += 1
            self._count("restart", 1)
        self._numbers.restarted()

    async def _fill(self, until: int, *, is_first: bool) -> None:
        """What lies before this number: by a replay, or else what was known is not believed any more.

        What an engine did before the first message that anybody remembers is not known, and need not be.
        """
        if self._replay is not None and until - self._numbers.wanted <= _MOST_REPLAYED:
            if await self._replayed(self._replay, until, is_first=is_first):
                self._count("replayed", 1)
                return
            is_first = False
        if not is_first:
            self._drop()
        self._numbers.taken(until - 1)

    async def _replayed(self, replay: Replay, until: int, *, is_first: bool) -> bool:
        """Whether nothing is missing any more."""
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
                        await self._take(message)
        except (Unreadable, TimeoutError, OSError) as failure:
            self.state.why = f"the replay failed ({type(failure).__name__})"
            return False
        return self._numbers.wanted >= until

    async def _take(self, message: Message) -> None:
        self._numbers.taken(message.sequence)
        try:
            batch = read_batch(message.payload)
        except Unreadable as failure:
            # It may have told of blocks that are gone.
            self._garbage(failure)
            self._drop()
            return
        if batch.passed_over:
            self._count("passed_over", batch.passed_over)
        for event in pieces(batch.events, _BLOCKS_AT_ONCE):
            self._chains.apply(self._name, event)
            hashes = getattr(event, "hashes", None)
            kind: KvResult = "cleared" if hashes is None else "stored" if isinstance(event, BlocksStored) else "removed"
            self._count(kind, 1 if hashes is None else len(hashes))
            # Requests come first: no more than one piece at a time.
            await asyncio.sleep(0)
        self.state.batches += 1
        self.state.blocks = self._chains.held(self._name)
        self._count("batch", 1)

    def _garbage(self, failure: Unreadable) -> None:
        self.state.garbage += 1
        self.state.why = str(failure)
        self._count("garbage", 1)

    def _drop(self) -> None:
        self._count("dropped", 1)
        self._chains.forget(self._name)
