"""How busy one replica is: what its engine said last, and what this process has sent there since.

Kept up to date when something happens (a request sent, its first token, its end, a scrape), so that a decision only
reads a few numbers. The engine's word is up to some seconds old; the process's own is not, but it does not know of other
gateways. So the engine's word counts as of its moment, and the process's own changes since are added to it.
"""

from collections.abc import Callable
from typing import Final

from selfhosted.replica import EngineStats, ReplicaRequest

_POOL_FADE: Final = 0.99
"""What one observed prefill leaves of the earlier ones' weight: some hundred are remembered."""
_OWN_FADE: Final = 0.99
_DOUBT: Final = 30
"""How many observations say that replicas are alike: so much must be outweighed before one is believed to be different.
One replica's thirty observations differ from another's by a tenth without any reason, and the one that merely looks
quicker would get all the work."""
_PRIOR_TOKENS: Final = 40_000.0
"""The configured prefill rate weighs as much as so many tokens that were observed."""
_LEAST_TOKENS: Final = 512
"""A shorter prefill's time is not that of its tokens."""
_FURTHEST: Final = 8.0
"""One observation is believed to be no further off what is known than by this factor."""
_INTERFERENCE: Final = 0.5
"""Prefill shares each step with decoding: a full KV cache slows it by about so much."""
_OVERDUE: Final = 0.15
"""A prefill that should be done by now, but is not, is believed to have so much of itself left."""
ATTENTION_TOKENS: Final = 60_000
"""A token with so many before it takes twice as long to read as the first (Llama 70B: 53,000; 8B: 31,000)."""
_BATCH_S: Final = 0.05
"""What each request that generates there counts, so that they are spread: all of them share the steps."""
_SOON_S: Final = 1.0
"""About the time between two readings of an engine. What it begins to read within it does not queue there."""
_MEAN_FADE: Final = 0.95
_MEAN_DURATION_S: Final = 5.0


class PrefillSpeed:
    """How quickly the pool's replicas read prompts, as first tokens show."""

    __slots__ = ("_seconds", "_tokens", "rate")

    def __init__(self, prefill_tokens_per_s: float) -> None:
        self.rate = prefill_tokens_per_s
        self._tokens = _PRIOR_TOKENS
        self._seconds = _PRIOR_TOKENS / prefill_tokens_per_s

    def learn(self, tokens: float, seconds: float) -> float:
        """The time that was to be expected; and one observation more."""
        expected_s = tokens / self.rate
        seconds = min(max(seconds, expected_s / _FURTHEST), expected_s * _FURTHEST)
        self._tokens = self._tokens * _POOL_FADE + tokens
        self._seconds = self._seconds * _POOL_FADE + seconds
        self.rate = self._tokens / self._seconds
        return expected_s


def work_of(tokens: int, uncached: float) -> float:
    """What reading the last `uncached` of a prompt's tokens takes, in tokens that have none before them."""
    return uncached * (1 + (tokens - uncached / 2) / ATTENTION_TOKENS)


class Lease:
    """A request at a replica, from when it is sent until it ends. Each of its events counts once."""

    __slots__ = (
        "_on_end",
        "ahead_s",
        "ask",
        "cached_tokens",
        "ended",
        "load",
        "matched",
        "output_tokens",
        "pinned",
        "replica",
        "started",
        "taken",
        "uncached",
        "work",
    )

    def __init__(
        self, load: "Load", ask: ReplicaRequest, matched: int, now: float, on_end: Callable[["Lease"], None]
    ) -> None:
        self.replica = load.name
        self.ask = ask
        self.uncached = max(1, ask.tokens - matched)
        self.work = work_of(ask.tokens, self.uncached)
        self.cached_tokens: int | None = None
        self.output_tokens = ask.output_tokens
        self.taken = now
        self.matched = matched
        self.pinned = 0
        self.started = False
        self.ended = False
        self.ahead_s = load.wait_s(now)
        self.load = load
        self._on_end = on_end

    def first_token(self, now: float, *, told: bool = True) -> None:
        """Its prompt has been read; just now, or at some time before where that was not told."""
        if not self.started and not self.ended:
            self.started = True
            self.load.began(self, now, told=told)

    def end(self, now: float, *, cached_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """It is over, however it went. What the engine said of it: tokens of the prompt that it found cached, and tokens of
        the answer.
        """
        if not self.ended:
            self.ended = True
            self.cached_tokens = cached_tokens
            if output_tokens is not None:
                self.output_tokens = output_tokens
            self.load.ended(self, now)
            self._on_end(self)


class Load:
    """One replica's load. `clear_at`, `rest_s`, `extra_s`, `batch_s`, `token_s` and `room_tokens` are what a decision reads."""

    __slots__ = (
        "_at_scrape",
        "_duration_s",
        "_expected_s",
        "_most",
        "_others",
        "_pace",
        "_pending",
        "_pending_work",
        "_seen",
        "_since",
        "_took_s",
        "_work_mean",
        "batch_s",
        "bit",
        "busy_tokens",
        "clear_at",
        "extra_s",
        "free_s_per_token",
        "known",
        "name",
        "prompt",
        "rate",
        "requests",
        "rest_s",
        "room_tokens",
        "stats",
        "token_s",
        "tokens",
        "usage",
        "waiting",
    )

    def __init__(self, name: str, bit: int, pace: PrefillSpeed) -> None:
        self.name = name
        self.bit = bit
        self.stats: EngineStats | None = None
        self.known = False
        self.requests = 0
        self.tokens = 0
        self.prompt = 0
        self.rate = pace.rate
        self._pace = pace
        self._took_s = 0.0
        self._expected_s = 0.0
        self._seen = 0.0
        self._pending: dict[Lease, None] = {}
        self._pending_work = 0.0
        self._since = 0.0
        self._others = (0.0, 0.0)
        self._work_mean = 1_000.0
        self._duration_s = _MEAN_DURATION_S
        self._at_scrape = (0, 0, 0)
        self._most = (0, 0, 0)
        self.batch_s = 0.0
        self.busy_tokens = 0.0
        self.clear_at = 0.0
        self.rest_s = 0.0
        self.extra_s = 0.0
        self.token_s = 1 / pace.rate
        self.room_tokens = float("inf")
        self.free_s_per_token = 0.0
        self.usage = 0.0
        self.waiting = 0

    @property
    def pending(self) -> int:
        """Own requests whose first token has not come."""
        return len(self._pending)

    @property
    def in_flight(self) -> int:
        """Requests there, own and others', as far as is known."""
        if self.stats is None:
            return self.requests
        return max(self.requests, self.stats.running + self.stats.waiting + self.requests - self._at_scrape[0])

    def wait_s(self, now: float) -> float:
        """Until the prefills that are there are done, and whatever else has to be waited for."""
        return max(self.clear_at - now, self.rest_s) + self.extra_s

    def take(self, lease: Lease, now: float) -> None:
        if not self._pending:
            self._since = now
        self._pending[lease] = None
        self._pending_work += lease.work
        self.requests += 1
        self.tokens += _room_of(lease.ask)
        self.prompt += lease.ask.tokens
        self._work_mean += (lease.work - self._work_mean) * (1 - _MEAN_FADE)
        requests, tokens, pending = self._most
        self._most = max(requests, self.requests), max(tokens, self.tokens), max(pending, len(self._pending))
        self._reckon()

    def began(self, lease: Lease, now: float, *, told: bool = True) -> None:
        if told:
            self._learn(lease, now - lease.taken)
        self._settle(lease)
        self._since = now
        self._reckon()

    def ended(self, lease: Lease, now: float) -> None:
        self._settle(lease)
        self.requests -= 1
        self.tokens -= _room_of(lease.ask)
        self.prompt -= lease.ask.tokens
        if lease.started:
            self._duration_s += (now - lease.taken - self._duration_s) * (1 - _MEAN_FADE)
        self._reckon()

    def _settle(self, lease: Lease) -> None:
        if lease in self._pending:
            del self._pending[lease]
            self._pending_work = self._pending_work - lease.work if self._pending else 0.0

    def read(self, stats: EngineStats | None, now: float) -> None:
        """A scrape, or that there is none that is fresh enough."""
        self.known = stats is not None
        if stats is self.stats:
            return
        self.stats = stats
        # An engine that is busy answers late, of a moment that is not known: whatever of our own was there since the last
        # word is taken to be in this one, and for nobody else's.
        requests, tokens, pending = self._most
        self._at_scrape, self._most = (requests, tokens, len(self._pending)), self._own()
        others = max(0, stats.waiting - pending) if stats is not None else 0
        self._others = (now, others * self._work_mean / self.rate) if others else (0.0, 0.0)
        self._reckon()

    def _own(self) -> tuple[int, int, int]:
        return self.requests, self.tokens, len(self._pending)

    def _reckon(self) -> None:
        """What decisions read, after something changed."""
        self._reckon_room()
        self._reckon_rate()
        self.token_s = (1 + _INTERFERENCE * min(1.0, self.usage)) / self.rate
        self.batch_s = _BATCH_S * max(0, self.in_flight - len(self._pending))
        since, others_s = self._others
        if self._pending:
            first = next(iter(self._pending)).work
            # Only of the first is it believed that a part is done already: the others' turn has not come.
            self.rest_s = (self._pending_work - (1 - _OVERDUE) * first) * self.token_s
            self.clear_at = self._since + self._pending_work * self.token_s + others_s
        else:
            self.rest_s = 0.0
            self.clear_at = since + others_s

    def _reckon_room(self) -> None:
        """KV room, batch slots and the engine's queue, and how long they have to be waited for."""
        stats = self.stats
        self.extra_s = self.usage = self.free_s_per_token = 0.0
        self.room_tokens = float("inf")
        self.busy_tokens = float(self.tokens)
        self.waiting = self._reckon_waiting()
        if stats is None:
            return
        if stats.max_running:
            over = self.in_flight + 1 - stats.max_running
            self.extra_s = max(0, over) * self._duration_s / stats.max_running
        if stats.kv_usage is None:
            return
        self.usage = stats.kv_usage
        if stats.kv_tokens:
            # The engine's word, and our own changes since.
            used = max(0.0, stats.kv_usage * stats.kv_tokens + self.tokens - self._at_scrape[1])
            self.busy_tokens = used
            self.usage = used / stats.kv_tokens
            self.room_tokens = max(0.0, stats.kv_tokens - used)
            self.free_s_per_token = self._duration_s / max(used, 1.0)

    def _reckon_waiting(self) -> int:
        """Requests in the engine's own queue. Of those that were sent since it was read, as many are taken to run at once
        as there are free slots; where slots are not told and nobody waited, as many as it reads until it is read again.
        """
        stats, pending = self.stats, len(self._pending)
        soon = max(1, int(self.rate * _SOON_S / self._work_mean))
        if stats is None:
            return max(0, pending - soon)
        sent = pending - self._at_scrape[2]
        if stats.waiting or sent <= 0:
            return max(0, stats.waiting + sent)
        free = max(1, stats.max_running - stats.running) if stats.max_running else soon
        return max(0, sent - free)

    def _learn(self, lease: Lease, took_s: float) -> None:
        """The prefill rate, from how long a first token took and how much had to be read before it."""
        if lease.uncached < _LEAST_TOKENS or took_s <= 0 or self.extra_s:
            return
        expected_s = self._pace.learn(lease.work + lease.ahead_s * self.rate, took_s)
        took_s = min(max(took_s, expected_s / _FURTHEST), expected_s * _FURTHEST)
        self._took_s = self._took_s * _OWN_FADE + took_s
        self._expected_s = self._expected_s * _OWN_FADE + expected_s
        self._seen = self._seen * _OWN_FADE + 1

    def _reckon_rate(self) -> None:
        """The pool's, but for what this replica's own observations show beyond doubt."""
        doubt = self._expected_s * _DOUBT / self._seen if self._seen else 1.0
        self.rate = self._pace.rate * (self._expected_s + doubt) / (self._took_s + doubt)


def _room_of(ask: ReplicaRequest) -> int:
    return ask.tokens + ask.output_tokens
