"""Messages by which the processes of a host tell each other of the prompts that they sent to a pool's replicas.

Each process counts the others' requests as it counts its own: as load of their replica, and their prompts as cached
there. So several processes choose nearly as one would. What they tell is hashes and counts, never text, and it may be
lost: a request that others were not told of is invisible to them until the engine's statistics show it, and one whose
end was not told is ended by the next list of what is open, or when its process is not heard of any more.
"""

from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from selfhosted.balance.balancer import Balancer
from selfhosted.balance.blocks import HASHES
from selfhosted.balance.load import Lease
from selfhosted.replica import ReplicaRequest

_MOST_NEWS: Final = 2_048
"""Requests in one message; those beyond are not told of."""
_MOST_OPEN: Final = 16_384
"""Requests under way that are remembered of one other process, and told of in one list."""
_SILENT_S: Final = 5.0
"""Seconds without a message after which a process's requests are forgotten. It lists its open ones several times a
second.
"""


class SentPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A request that was sent to a replica."""

    number: int
    replica: str
    blocks: bytes
    """The prompt's block hashes, eight bytes each."""
    block_tokens: float
    tokens: int
    output_tokens: int


class EndedPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A request that ended, with the tokens that it was answered with."""

    number: int
    output_tokens: int


class PromptsSent(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a process at a pool since it last told."""

    pool: str
    hashes: int
    """The hash function that made the blocks; a process with another one takes nothing over."""
    process: str = ""
    """The boot id of the process; filled in by who hands the message on."""
    sent: tuple[SentPrompt, ...] = ()
    started: tuple[int, ...] = ()
    """Numbers of requests whose first token came."""
    ended: tuple[EndedPrompt, ...] = ()
    open: tuple[int, ...] | None = None
    """Numbers of all requests under way; None: not told this time."""
    reads_per_s: float | None = None
    """Tokens of prompts that a replica reads a second, as the process has learned; None where it has not, or not told this time."""


class SentPrompts:
    """The messages of this process about one pool, as they gather."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._numbers: dict[Lease, int] = {}
        self._next = 0
        self._sent: list[SentPrompt] = []
        self._started: list[int] = []
        self._ended: list[EndedPrompt] = []
        self.news: Callable[[], None] = lambda: None
        """Called when there is something to tell."""

    def sent(self, lease: Lease) -> None:
        """Note that a request was sent."""
        if len(self._sent) >= _MOST_NEWS or len(self._numbers) >= _MOST_OPEN:
            return
        ask = lease.ask
        self._next = number = self._next + 1
        self._numbers[lease] = number
        blocks = array("q", ask.blocks).tobytes()
        self._sent.append(
            SentPrompt(number, lease.replica, blocks, ask.block_tokens, ask.tokens, ask.output_tokens)
        )  # fmt: skip
        self.news()

    def started(self, lease: Lease) -> None:
        """Note that its first token came."""
        number = self._numbers.get(lease)
        if number is not None:
            self._started.append(number)
            self.news()

    def ended(self, lease: Lease) -> None:
        """Note that it ended, however it went."""
        number = self._numbers.pop(lease, None)
        if number is not None:
            self._ended.append(EndedPrompt(number, lease.output_tokens))
            self.news()

    def told(self, *, whole: bool = False) -> PromptsSent | None:
        """Return the message that is due, once; None when there is none. `whole`: with the list of open requests."""
        if not (self._sent or self._started or self._ended or (whole and self._numbers)):
            return None
        message = PromptsSent(
            pool=self._pool,
            hashes=HASHES,
            sent=tuple(self._sent),
            started=tuple(self._started),
            ended=tuple(self._ended),
            open=tuple(self._numbers.values()) if whole else None,
        )
        self._sent, self._started, self._ended = [], [], []
        return message


class _Process:
    """The known requests of another process."""

    __slots__ = ("heard_at", "leases")

    def __init__(self) -> None:
        self.heard_at = 0.0
        self.leases: dict[int, Lease] = {}


class ToldPrompts:
    """The count of other processes' messages at a pool's balancers, each at the one that knows the replica. Speeds are
    the first one's.
    """

    def __init__(self, *balancers: Balancer) -> None:
        self._balancers = balancers
        self._processes: dict[str, _Process] = {}

    def __len__(self) -> int:
        """Return the number of others' requests that are under way."""
        return sum(len(process.leases) for process in self._processes.values())

    def hear(self, message: PromptsSent, now: float) -> None:
        """Take over the message of one process."""
        if message.reads_per_s is not None:
            self._balancers[0].merge_prefill_rate(message.reads_per_s)
        if message.hashes != HASHES:
            return
        process = self._processes.setdefault(message.process, _Process())
        process.heard_at = now
        for prompt in message.sent:
            self._take(process, prompt, now)
        for number in message.started:
            lease = process.leases.get(number)
            if lease is not None:
                # When it came is known too roughly to learn a speed from.
                lease.first_token(now, told=False)
        for ended in message.ended:
            lease = process.leases.pop(ended.number, None)
            if lease is not None:
                lease.end(now, output_tokens=ended.output_tokens)
        if message.open is not None:
            still = frozenset(message.open)
            self._end(process, [number for number in process.leases if number not in still], now)

    def expire(self, now: float) -> None:
        """Forget the requests of processes that were not heard of for long: they are gone."""
        for name, process in tuple(self._processes.items()):
            if now - process.heard_at > _SILENT_S:
                self._end(process, list(process.leases), now)
                del self._processes[name]

    def _take(self, process: _Process, prompt: SentPrompt, now: float) -> None:
        if len(process.leases) >= _MOST_OPEN or len(prompt.blocks) % 8:
            return
        blocks = array("q")
        blocks.frombytes(prompt.blocks)
        ask = ReplicaRequest(
            blocks=tuple(blocks),
            block_tokens=max(1.0, prompt.block_tokens),
            root=0,
            tokens=prompt.tokens,
            output_tokens=prompt.output_tokens,
        )
        for balancer in self._balancers:
            lease = balancer.take_told(prompt.replica, ask, now)
            if lease is not None:
                process.leases[prompt.number] = lease
                return

    @staticmethod
    def _end(process: _Process, numbers: list[int], now: float) -> None:
        for number in numbers:
            process.leases.pop(number).end(now)
