"""The load of a replica: the engine's last statistics, and what this process has sent there since.

Updated when something happens (a request sent, its first token, its end, a scrape), so that a decision only reads a few
numbers. The engine's statistics are up to some seconds old; the process's own counts are not, but leave out other
gateways' requests. So the statistics count as of their moment, and the process's own changes since are added.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from selfhosted.config import BalanceTuning
from selfhosted.replica import EngineStats, ReplicaRequest

# How fast the past is forgotten, and the bound of a look: what is tuned is in BalanceTuning.
_POOL_DECAY: Final = 0.99
"""Decay of past observations for each new prefill; about the last hundred count."""
_OWN_DECAY: Final = 0.99
_LOOKED_AT: Final = 16
"""Number of the oldest requests without a first token that are checked for reading a prompt's beginning."""
_ENDLESS: Final = float("inf")
_STUCK_S: Final = 15.0
"""Seconds without a token read or generated after which an engine that says that it is busy is not believed."""
_MEAN_DECAY: Final = 0.95
_VISIBILITY_PRIOR: Final = 16.0
"""Requests that are taken to be known before anything was read."""
_VISIBILITY_DECAY: Final = 0.99


class PrefillSpeed:
    """Prefill rate of the pool's replicas in tokens/s, learned from times to first token."""

    __slots__ = ("_seconds", "_tokens", "is_learned", "rate", "tuning")

    def __init__(self, prefill_tokens_per_s: float, tuning: BalanceTuning) -> None:
        self.tuning = tuning
        self.rate = prefill_tokens_per_s
        self.is_learned = False
        self._tokens = tuning.rate_prior_tokens
        self._seconds = tuning.rate_prior_tokens / prefill_tokens_per_s

    def learn(self, tokens: float, seconds: float) -> float:
        """Add an observation, and return the seconds that were expected before it."""
        self.is_learned = True
        expected_s = tokens / self.rate
        most = self.tuning.max_learned_factor
        seconds = min(max(seconds, expected_s / most), expected_s * most)
        self._tokens = self._tokens * _POOL_DECAY + tokens
        self._seconds = self._seconds * _POOL_DECAY + seconds
        self.rate = self._tokens / self._seconds
        return expected_s

    def merge(self, tokens_per_s: float) -> None:
        """Adopt a rate that another process has learned; it counts until something is learned here."""
        if not self.is_learned and tokens_per_s > 0:
            self.rate = tokens_per_s
            self._seconds = self._tokens / tokens_per_s

    def work_of(self, tokens: int, uncached: float) -> float:
        """Return the cost of prefilling the last `uncached` of a prompt's tokens, in tokens without context: attention
        makes each token dearer in proportion to those before it.
        """
        return uncached * (1 + (tokens - uncached / 2) / self.tuning.attention_tokens)


class Recency:
    """What a token that is read now counts for in `Load.read_lately`. Instead of all that was before being made less, what comes is made
    more: what was read `horizon` tokens of the whole pool ago counts for a third of it.
    """

    __slots__ = ("factor",)
    most: Final = 1e100

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, load: "Load", tokens: float, horizon: float) -> None:
        load.read_lately += tokens * self.factor
        self.factor *= 1 + tokens / horizon


class TrafficVisibility:
    """The part of a pool's requests that this process knows of: its own, and those that others tell it of. The rest was
    sent by gateways that it does not hear, and shows only in the engines' statistics.
    """

    __slots__ = ("_known", "_there")

    def __init__(self) -> None:
        self._known = self._there = _VISIBILITY_PRIOR

    def saw(self, known: int, there: int) -> None:
        """Count one reading of an engine: `known` of the requests there are known here, of `there` in all."""
        self._known = self._known * _VISIBILITY_DECAY + known
        self._there = self._there * _VISIBILITY_DECAY + there

    @property
    def part(self) -> float:
        """1 where all are known."""
        return self._known / self._there if self._there > self._known else 1.0


class Lease:
    """The load of one request at a replica, from when it is sent until it ends. Repeated events have no effect."""

    __slots__ = (
        "_on_end",
        "ahead",
        "ahead_s",
        "ask",
        "cached_tokens",
        "ended",
        "held",
        "load",
        "matched",
        "output_tokens",
        "pinned",
        "replica",
        "seated",
        "started",
        "taken",
        "uncached",
        "work",
    )

    def __init__(
        self, load: "Load", ask: ReplicaRequest, matched: int, now: float, on_end: Callable[["Lease"], None]
    ) -> None:
        tokens = ask.tokens
        self.replica = load.name
        self.ask = ask
        self.uncached = max(1, tokens - matched)
        self.work = load.speed.work_of(tokens, self.uncached)
        self.cached_tokens: int | None = None
        self.output_tokens = ask.output_tokens
        self.taken = now
        self.matched = matched
        self.pinned = 0
        self.held = tokens + ask.output_tokens
        """Tokens of KV cache that it takes besides the blocks that the index has pinned for it."""
        self.started = False
        self.ended = False
        self.seated = load.has_seat
        """Whether the engine had a seat for it at once."""
        self.ahead_s = load.wait_s(now)
        self.ahead = load.ahead(now)
        self.load = load
        self._on_end = on_end

    def first_token(self, now: float, *, told: bool = True) -> None:
        """Mark the prompt as prefilled: just now or, when not `told`, at some earlier time, from which no rate is
        learned.
        """
        if not self.started and not self.ended:
            self.started = True
            self.load.began(self, now, told=told)

    def end(self, now: float, *, cached_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """End the request, however it went. `cached_tokens` and `output_tokens` are the engine's own counts, None
        where it reported none.
        """
        if not self.ended:
            self.ended = True
            self.cached_tokens = cached_tokens
            if output_tokens is not None:
                self.output_tokens = output_tokens
            self._on_end(self)
            self.load.ended(self, now)


class Load:
    """The load of one replica. Decisions read `clear_at`, `rest_s`, `extra_s`, `batch_s`, `token_s`, `hold_s` and `room_tokens`."""

    __slots__ = (
        "_counters",
        "_duration_s",
        "_expected_s",
        "_flight_base",
        "_most_pending",
        "_most_requests",
        "_most_running",
        "_most_tokens",
        "_moved_at",
        "_observations",
        "_observed_s",
        "_others_since",
        "_others_wait_s",
        "_pending",
        "_pending_at_scrape",
        "_pending_since",
        "_pending_work",
        "_tuning",
        "_used_base",
        "_work_mean",
        "asked",
        "batch_s",
        "bit",
        "busy_tokens",
        "clear_at",
        "extra_s",
        "free_s_per_token",
        "held",
        "hold_s",
        "in_flight",
        "known",
        "name",
        "pinned_tokens",
        "rate",
        "read_lately",
        "requests",
        "rest_s",
        "room_tokens",
        "speed",
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
        """Tokens of KV cache that known requests take: `held` and `pinned_tokens`, as of the last of them that came or ended."""
        self.held = 0
        self.pinned_tokens = 0
        """Tokens of the blocks that known requests have pinned, each block once however many share it."""
        self.asked = 0
        """Tokens of known requests as a queue counts them: whole prompts, and the answers that are expected."""
        self.read_lately = 0.0
        """Tokens of prompts that were to be read there: the longer ago, the less they count (`Recency`)."""
        self.rate = pace.rate
        self.speed = pace
        self._tuning = pace.tuning
        self._observed_s = 0.0
        self._expected_s = 0.0
        self._observations = 0.0
        self._pending: dict[Lease, None] = {}
        self._pending_work = 0.0
        self._pending_since = 0.0
        self._others_since = 0.0
        self._others_wait_s = 0.0
        self._work_mean = 1_000.0
        self._duration_s = self._tuning.first_duration_s
        self._counters: tuple[float | None, float | None] = (None, None)
        self._moved_at = 0.0
        # What decisions add to the process's own counts, from the last scrape.
        self._flight_base = 0
        self._used_base = 0.0
        self._pending_at_scrape = 0
        self._most_requests = self._most_tokens = self._most_pending = 0
        self._most_running = 0
        self.in_flight = 0
        """Known requests at the replica: this process's and, by the engine's statistics, others'."""
        self.batch_s = 0.0
        self.busy_tokens = 0.0
        self.clear_at = 0.0
        self.rest_s = 0.0
        self.extra_s = 0.0
        self.token_s = 1 / pace.rate
        self.room_tokens = _ENDLESS
        self.free_s_per_token = 0.0
        self.hold_s = 0.0
        """Seconds that a token to be read counts for besides its reading, as it takes place in the KV cache."""
        self.usage = 0.0
        self.waiting = 0

    @property
    def pending(self) -> int:
        """Requests of this process whose first token has not come."""
        return len(self._pending)

    @property
    def has_seat(self) -> bool:
        """True where a request that comes now starts as soon as the prompts before it are read."""
        return not self.extra_s and self.usage < self._tuning.full_kv_usage

    @property
    def shares(self) -> bool:
        """True where the known requests have much of their prompts in common with each other."""
        return self.tokens < (1 - self._tuning.sharing_part) * self.asked

    @property
    def asked_per_token(self) -> float:
        """Tokens that the requests there were counted with for each token of KV cache in use, where they share beginnings; 1
        where they do not. What they have not generated yet is counted, too.
        """
        if not self.known or not self.busy_tokens or not self.shares:
            return 1.0
        return max(1.0, self.asked * max(1.0, self.in_flight / self.requests) / self.busy_tokens)

    def wait_s(self, now: float) -> float:
        """Return the expected seconds until a new prefill can begin."""
        wait_s, rest_s = self.clear_at - now, self.rest_s
        return max(wait_s, rest_s) + self.extra_s

    def is_reading(self, ask: ReplicaRequest, cached: int) -> bool:
        """Return whether the first `cached` tokens of the prompt, which are taken to be cached here, are still being read."""
        last = min(int(cached / ask.block_tokens), len(ask.blocks)) - 1
        if last < 0:
            return False
        block, read = ask.blocks[last], self._tuning.reading_part * cached
        return any(
            len(lease.ask.blocks) > last and lease.ask.blocks[last] == block and lease.matched < read
            for lease in islice(self._pending, _LOOKED_AT)
        )

    def ahead(self, now: float) -> float:
        """Return the work that is to be read there before a new prompt, in tokens without context."""
        left = (self.clear_at - now) / self.token_s
        if self._pending:
            left = max(left, self._pending_work - (1 - self._tuning.overdue_part) * next(iter(self._pending)).work)
        return max(0.0, left)

    def take(self, lease: Lease, now: float) -> None:
        pending, ask = self._pending, lease.ask
        if not pending:
            self._pending_since = now
        pending[lease] = None
        self._pending_work += lease.work
        self.requests += 1
        self.held += lease.held
        self.tokens = self.held + self.pinned_tokens
        self.asked += ask.tokens + ask.output_tokens
        self._work_mean += (lease.work - self._work_mean) * (1 - _MEAN_DECAY)
        self._note_most()
        self._recompute()

    def began(self, lease: Lease, now: float, *, told: bool = True) -> None:
        if told:
            self._learn(lease, now - lease.taken)
        self._remove_pending(lease)
        self._pending_since = now
        self._recompute()

    def ended(self, lease: Lease, now: float) -> None:
        ask = lease.ask
        self._remove_pending(lease)
        self.requests -= 1
        self.held -= lease.held
        self.tokens = self.held + self.pinned_tokens
        self.asked -= ask.tokens + ask.output_tokens
        if lease.started:
            self._duration_s += (now - lease.taken - self._duration_s) * (1 - _MEAN_DECAY)
        self._recompute()

    def _remove_pending(self, lease: Lease) -> None:
        if lease in self._pending:
            del self._pending[lease]
            self._pending_work = self._pending_work - lease.work if self._pending else 0.0

    def read(self, stats: EngineStats | None, now: float) -> None:
        """Take over the statistics of a scrape; None when there are none that are fresh enough."""
        if stats is not None and self._is_stuck(stats):
            stats = None
        self.known = stats is not None
        if stats is None:
            self._most_running = 0
        if stats is self.stats:
            return
        self.stats = stats
        # A busy engine answers late, so the moment that its statistics describe is unknown: the most that this process had
        # there since the last scrape is taken to be counted in them, and not as other gateways' requests.
        requests, tokens, pending = self._most_requests, self._most_tokens, self._most_pending
        self._pending_at_scrape = len(self._pending)
        self._most_requests, self._most_tokens, self._most_pending = self.requests, self.tokens, len(self._pending)
        self._others_since, self._others_wait_s = 0.0, 0.0
        if stats is not None:
            self._most_running = max(self._most_running, stats.running)
            self._flight_base = stats.running + stats.waiting - requests
            self._used_base = (stats.kv_usage or 0.0) * (stats.kv_tokens or 0) - tokens
            others = stats.waiting - pending
            if others > 0:
                self._others_since, self._others_wait_s = now, others * self._work_mean / self.rate
        self._recompute()

    def _is_stuck(self, stats: EngineStats) -> bool:
        """Return whether the engine says that it is busy, but does nothing, and nothing that is known of is there. vLLM goes on saying so
        after all of its requests were given up, until it gets the next one (vllm#29928), which a full replica never would.
        """
        counters = stats.prompt_tokens, stats.output_tokens
        is_busy = stats.running or stats.waiting or stats.kv_usage
        if counters != self._counters or stats.output_tokens is None or self.requests or not is_busy:
            self._counters, self._moved_at = counters, stats.at
        return stats.at - self._moved_at >= _STUCK_S

    def _note_most(self) -> None:
        """Note the most that this process had there since the last scrape."""
        pending = len(self._pending)
        self._most_requests = max(self._most_requests, self.requests)
        self._most_tokens = max(self._most_tokens, self.tokens)
        self._most_pending = max(self._most_pending, pending)

    def _recompute(self) -> None:
        """Recompute the inputs of decisions after a change. It runs three times per request, so it is written out."""
        pending, stats, used = self._pending, self.stats, None
        self.waiting = self._estimate_waiting(len(pending))
        self.extra_s = self.usage = self.free_s_per_token = self.hold_s = 0.0
        in_flight = self.requests
        if stats is not None:
            in_flight = max(in_flight, self._flight_base + in_flight)
            if stats.max_running and in_flight >= stats.max_running:
                self.extra_s = (in_flight + 1 - stats.max_running) * self._duration_s / stats.max_running
            if stats.kv_usage is not None:
                self.usage = stats.kv_usage
                if stats.kv_tokens:
                    # The engine's statistics, plus this process's own changes since.
                    used = max(0.0, self._used_base + self.tokens)
                    self.usage = used / stats.kv_tokens
                    self.room_tokens = stats.kv_tokens - used
                    self.free_s_per_token = self._duration_s / max(used, 1.0)
                    # The fuller the cache, the dearer is what one more prompt holds there while it is answered.
                    self.hold_s = self._tuning.hold_weight * min(1.0, self.usage) * self._duration_s / stats.kv_tokens
        if used is None:
            self.room_tokens, self.busy_tokens = _ENDLESS, float(self.tokens)
        else:
            self.busy_tokens = used
        self.in_flight = in_flight
        self._recompute_waits(in_flight - len(pending))
        if stats is not None and stats.running and stats.waiting and self.waiting and self._no_seat(stats):
            # Engines that are full of generating requests start the next one when one ends, whatever is to be read.
            self.rest_s = max(self.rest_s, self.waiting * self._duration_s / max(1, in_flight))

    def _no_seat(self, stats: EngineStats) -> bool:
        """Return whether requests wait for others to end. Where far fewer run than have run there at once, and the KV cache has room,
        they wait for prompts to be read.
        """
        return (
            stats.running >= self._tuning.seated_part * self._most_running
            or (stats.kv_usage or 0.0) >= self._tuning.full_kv_usage
        )

    def _recompute_waits(self, generating: int) -> None:
        """Recompute the rate, which is the pool's, corrected by the replica's own observations as far as they outweigh
        `replica_doubt`; and the waiting times.
        """
        tuning = self._tuning
        doubt = self._expected_s * tuning.replica_doubt / self._observations if self._observations else 1.0
        self.rate = rate = self.speed.rate * (self._expected_s + doubt) / (self._observed_s + doubt)
        self.token_s = token_s = (1 + tuning.decode_interference * min(1.0, self.usage)) / rate
        self.batch_s = tuning.generating_s * generating if generating > 0 else 0.0
        if self._pending:
            first, work = next(iter(self._pending)).work, self._pending_work
            # Only of the first is it believed that a part is done already: the others' turn has not come.
            self.rest_s = (work - (1 - tuning.overdue_part) * first) * token_s
            self.clear_at = self._pending_since + work * token_s + self._others_wait_s
        else:
            self.rest_s = 0.0
            self.clear_at = self._others_since + self._others_wait_s

    def _estimate_waiting(self, pending: int) -> int:
        """Return estimated requests in the engine's own queue. Of those sent since the last scrape, as many are assumed
        running as there are free slots; where the slots are unknown and nobody waited, as many as it prefills before
        the next scrape.
        """
        stats = self.stats
        sent = pending if stats is None else pending - self._pending_at_scrape
        if stats is not None and (stats.waiting or sent <= 0):
            return max(0, stats.waiting + sent)
        if not sent:
            return 0
        if stats is not None and stats.max_running:
            free = max(1, stats.max_running - stats.running)
        else:
            free = max(1, int(self.rate * self._tuning.scrape_gap_s / self._work_mean))
        return max(0, sent - free)

    def _learn(self, lease: Lease, took_s: float) -> None:
        """Learn the prefill rate from a time to first token and the work that had to be done before it."""
        if lease.uncached < self._tuning.min_learned_tokens or took_s <= 0:
            return
        if not (lease.seated and self.has_seat):
            # It may have waited for others to end, which tells nothing of how fast prompts are read.
            return
        expected_s = self.speed.learn(lease.work + lease.ahead, took_s)
        most = self._tuning.max_learned_factor
        took_s = min(max(took_s, expected_s / most), expected_s * most)
        self._observed_s = self._observed_s * _OWN_DECAY + took_s
        self._expected_s = self._expected_s * _OWN_DECAY + expected_s
        self._observations = self._observations * _OWN_DECAY + 1
