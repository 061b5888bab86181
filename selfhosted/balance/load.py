"""The load of a replica: the engine's last statistics, and what this process has sent there since.

Updated when something happens (a request sent, its first token, its end, a scrape), so that a decision only reads a few
numbers. The engine's statistics are up to some seconds old; the process's own counts are not, but leave out other
gateways' requests. So the statistics count as of their moment, and the process's own changes since are added.
"""

from collections.abc import Callable
from typing import Final

from selfhosted.replica import EngineStats, ReplicaRequest

_POOL_DECAY: Final = 0.99
"""Decay of past observations for each new prefill; about the last hundred count."""
_OWN_DECAY: Final = 0.99
_DOUBT: Final = 30
"""Weight, in observations, of the assumption that replicas are equally fast; a replica must outweigh it before it is
believed to be different. One replica's thirty observations differ from another's by a tenth without any reason, and the
one that merely looks faster would get all the work."""
_PRIOR_TOKENS: Final = 40_000.0
"""Weight of the configured prefill rate, in observed tokens."""
_LEAST_TOKENS: Final = 512
"""Prefills shorter than this teach nothing: fixed costs dominate their time."""
_MOST_FACTOR: Final = 8.0
"""An observation is clipped to this factor above or below the expected time."""
_INTERFERENCE: Final = 0.5
"""Slowdown of prefill by decoding, which shares each step: a full KV cache makes it about so much slower."""
_OVERDUE: Final = 0.15
"""Fraction of a prefill assumed to remain when it is overdue."""
ATTENTION_TOKENS: Final = 60_000
"""Context length at which a token takes twice as long to prefill as the first (Llama 70B: 53,000; 8B: 31,000)."""
_BATCH_S: Final = 0.05
"""Penalty in seconds for each request that generates there, so that requests are spread: all share the steps."""
_SCRAPE_GAP_S: Final = 1.0
"""About the time between two scrapes. Prefills that begin within it do not queue."""
_MEAN_DECAY: Final = 0.95
_MEAN_DURATION_S: Final = 5.0


class PrefillSpeed:
    """Prefill rate of the pool's replicas in tokens/s, learned from times to first token."""

    __slots__ = ("_seconds", "_tokens", "rate")

    def __init__(self, prefill_tokens_per_s: float) -> None:
        self.rate = prefill_tokens_per_s
        self._tokens = _PRIOR_TOKENS
        self._seconds = _PRIOR_TOKENS / prefill_tokens_per_s

    def learn(self, tokens: float, seconds: float) -> float:
        """Adds an observation, and returns the seconds that were expected before it."""
        expected_s = tokens / self.rate
        seconds = min(max(seconds, expected_s / _MOST_FACTOR), expected_s * _MOST_FACTOR)
        self._tokens = self._tokens * _POOL_DECAY + tokens
        self._seconds = self._seconds * _POOL_DECAY + seconds
        self.rate = self._tokens / self._seconds
        return expected_s


def work_of(tokens: int, uncached: float) -> float:
    """Cost of prefilling the last `uncached` of a prompt's tokens, in tokens without context: attention makes each
    token dearer in proportion to those before it.
    """
    return uncached * (1 + (tokens - uncached / 2) / ATTENTION_TOKENS)


class Lease:
    """The load of one request at a replica, from when it is sent until it ends. Repeated events have no effect."""

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
        """Marks the prompt as prefilled: just now or, when not `told`, at some earlier time, from which no rate is
        learned.
        """
        if not self.started and not self.ended:
            self.started = True
            self.load.began(self, now, told=told)

    def end(self, now: float, *, cached_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """Ends the request, however it went. `cached_tokens` and `output_tokens` are the engine's own counts, None
        where it reported none.
        """
        if not self.ended:
            self.ended = True
            self.cached_tokens = cached_tokens
            if output_tokens is not None:
                self.output_tokens = output_tokens
            self.load.ended(self, now)
            self._on_end(self)


class Load:
    """The load of one replica. Decisions read `clear_at`, `rest_s`, `extra_s`, `batch_s`, `token_s` and `room_tokens`."""

    __slots__ = (
        "_at_scrape",
        "_duration_s",
        "_expected_s",
        "_most_since_scrape",
        "_observations",
        "_observed_s",
        "_others_wait",
        "_pending",
        "_pending_since",
        "_pending_work",
        "_speed",
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
        self._speed = pace
        self._observed_s = 0.0
        self._expected_s = 0.0
        self._observations = 0.0
        self._pending: dict[Lease, None] = {}
        self._pending_work = 0.0
        self._pending_since = 0.0
        self._others_wait = (0.0, 0.0)
        self._work_mean = 1_000.0
        self._duration_s = _MEAN_DURATION_S
        self._at_scrape = (0, 0, 0)
        self._most_since_scrape = (0, 0, 0)
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
        """Requests of this process whose first token has not come."""
        return len(self._pending)

    @property
    def in_flight(self) -> int:
        """Known requests at the replica: this process's and, by the engine's statistics, others'."""
        if self.stats is None:
            return self.requests
        return max(self.requests, self.stats.running + self.stats.waiting + self.requests - self._at_scrape[0])

    def wait_s(self, now: float) -> float:
        """Expected seconds until a new prefill can begin."""
        return max(self.clear_at - now, self.rest_s) + self.extra_s

    def take(self, lease: Lease, now: float) -> None:
        if not self._pending:
            self._pending_since = now
        self._pending[lease] = None
        self._pending_work += lease.work
        self.requests += 1
        self.tokens += _tokens_of(lease.ask)
        self.prompt += lease.ask.tokens
        self._work_mean += (lease.work - self._work_mean) * (1 - _MEAN_DECAY)
        requests, tokens, pending = self._most_since_scrape
        self._most_since_scrape = (
            max(requests, self.requests),
            max(tokens, self.tokens),
            max(pending, len(self._pending)),
        )
        self._recompute()

    def began(self, lease: Lease, now: float, *, told: bool = True) -> None:
        if told:
            self._learn(lease, now - lease.taken)
        self._remove_pending(lease)
        self._pending_since = now
        self._recompute()

    def ended(self, lease: Lease, now: float) -> None:
        self._remove_pending(lease)
        self.requests -= 1
        self.tokens -= _tokens_of(lease.ask)
        self.prompt -= lease.ask.tokens
        if lease.started:
            self._duration_s += (now - lease.taken - self._duration_s) * (1 - _MEAN_DECAY)
        self._recompute()

    def _remove_pending(self, lease: Lease) -> None:
        if lease in self._pending:
            del self._pending[lease]
            self._pending_work = self._pending_work - lease.work if self._pending else 0.0

    def read(self, stats: EngineStats | None, now: float) -> None:
        """Takes over the statistics of a scrape; None when there are none that are fresh enough."""
        self.known = stats is not None
        if stats is self.stats:
            return
        self.stats = stats
        # A busy engine answers late, so the moment that its statistics describe is unknown: the most that this process had
        # there since the last scrape is taken to be counted in them, and not as other gateways' requests.
        requests, tokens, pending = self._most_since_scrape
        self._at_scrape, self._most_since_scrape = (requests, tokens, len(self._pending)), self._own_counts()
        others = max(0, stats.waiting - pending) if stats is not None else 0
        self._others_wait = (now, others * self._work_mean / self.rate) if others else (0.0, 0.0)
        self._recompute()

    def _own_counts(self) -> tuple[int, int, int]:
        return self.requests, self.tokens, len(self._pending)

    def _recompute(self) -> None:
        """Recomputes what decisions read, after a change."""
        self._recompute_room()
        self._recompute_rate()
        self.token_s = (1 + _INTERFERENCE * min(1.0, self.usage)) / self.rate
        self.batch_s = _BATCH_S * max(0, self.in_flight - len(self._pending))
        since, others_s = self._others_wait
        if self._pending:
            first = next(iter(self._pending)).work
            # Only of the first is it believed that a part is done already: the others' turn has not come.
            self.rest_s = (self._pending_work - (1 - _OVERDUE) * first) * self.token_s
            self.clear_at = self._pending_since + self._pending_work * self.token_s + others_s
        else:
            self.rest_s = 0.0
            self.clear_at = since + others_s

    def _recompute_room(self) -> None:
        """Recomputes the room in the KV cache, the wait for a batch slot and the engine's queue."""
        stats = self.stats
        self.extra_s = self.usage = self.free_s_per_token = 0.0
        self.room_tokens = float("inf")
        self.busy_tokens = float(self.tokens)
        self.waiting = self._estimate_waiting()
        if stats is None:
            return
        if stats.max_running:
            over = self.in_flight + 1 - stats.max_running
            self.extra_s = max(0, over) * self._duration_s / stats.max_running
        if stats.kv_usage is None:
            return
        self.usage = stats.kv_usage
        if stats.kv_tokens:
            # The engine's statistics, plus this process's own changes since.
            used = max(0.0, stats.kv_usage * stats.kv_tokens + self.tokens - self._at_scrape[1])
            self.busy_tokens = used
            self.usage = used / stats.kv_tokens
            self.room_tokens = max(0.0, stats.kv_tokens - used)
            self.free_s_per_token = self._duration_s / max(used, 1.0)

    def _estimate_waiting(self) -> int:
        """Estimated requests in the engine's own queue. Of those sent since the last scrape, as many are assumed
        running as there are free slots; where the slots are unknown and nobody waited, as many as it prefills before
        the next scrape.
        """
        stats, pending = self.stats, len(self._pending)
        soon = max(1, int(self.rate * _SCRAPE_GAP_S / self._work_mean))
        if stats is None:
            return max(0, pending - soon)
        sent = pending - self._at_scrape[2]
        if stats.waiting or sent <= 0:
            return max(0, stats.waiting + sent)
        free = max(1, stats.max_running - stats.running) if stats.max_running else soon
        return max(0, sent - free)

    def _learn(self, lease: Lease, took_s: float) -> None:
        """Learns the prefill rate from a time to first token and the work that had to be done before it."""
        if lease.uncached < _LEAST_TOKENS or took_s <= 0 or self.extra_s:
            return
        expected_s = self._speed.learn(lease.work + lease.ahead_s * self.rate, took_s)
        took_s = min(max(took_s, expected_s / _MOST_FACTOR), expected_s * _MOST_FACTOR)
        self._observed_s = self._observed_s * _OWN_DECAY + took_s
        self._expected_s = self._expected_s * _OWN_DECAY + expected_s
        self._observations = self._observations * _OWN_DECAY + 1

    def _recompute_rate(self) -> None:
        """Sets the replica's rate: the pool's, corrected by its own observations as far as they outweigh `_DOUBT`."""
        doubt = self._expected_s * _DOUBT / self._observations if self._observations else 1.0
        self.rate = self._speed.rate * (self._expected_s + doubt) / (self._observed_s + doubt)


def _tokens_of(ask: ReplicaRequest) -> int:
    return ask.tokens + ask.output_tokens
