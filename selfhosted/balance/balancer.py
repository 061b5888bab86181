"""The prefix-aware balancer: sends a request to the replica with the earliest expected first token.

While there is room the score of a replica is seconds: the wait there, plus the prefill of the part of the prompt that is not cached there.
Prefill counts more than waiting (`prefill_weight` of BalanceTuning, which has all tuned constants): it also delays every later request, and what is read a second time evicts
something else from a cache; the longer everybody waits, the more it counts. Where all have long queues, prefixes stay
together as far as queues stay even (`_saturated_scores`).

A gateway of three hosts or more that do not hear of each other knows too little for that, and keeps to the ring.

Replicas that are about equally good are told apart by consistent hashing, so that gateways that do not talk to each
other send a new conversation to the same one. Its load is bounded: a home far above the mean is passed over for the
next on the ring. Where that decides nothing either, two are drawn and the less loaded one is taken.

Who knows of nearly all requests needs no ring for a prompt that is cached nowhere: it goes where the least was read of late
(`Load.read_lately`). All that will share its beginning follows it, so beginnings are dealt out evenly, and not by the moment's loads.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from selfhosted.balance.index import PrefixIndex
from selfhosted.balance.load import Lease, Load, PrefillSpeed, Recency, TrafficVisibility
from selfhosted.balance.ring import Ring
from selfhosted.balance.room import pool_full, reading_of, room_of
from selfhosted.config import BalanceConfig, BalanceTuning, RoomConfig
from selfhosted.replica import (
    EngineStats,
    PoolReading,
    PoolRoom,
    PoolSnapshot,
    Replica,
    ReplicaChoice,
    ReplicaRequest,
    Why,
)

_ENDLESS: Final = float("inf")
_LEAST_POOL_TOKENS: Final = 1_000_000
_SLACK: Final = 0.25
"""Part of a prompt within which replicas have read as much of late, so that the ring may tell them apart."""
_ALIKE: Final = 0.8
"""Part of the most that a replica would have to read of a prompt, from which on the least is about as much."""

Matched = tuple[tuple[float, int], Mapping[int, float]]
"""Cached prefix lengths of a prompt, in blocks, as `PrefixIndex.match` returns them."""


class Rules(NamedTuple):
    """The parameters of a decision besides the request and the replicas."""

    ring: Ring
    config: BalanceConfig
    places: dict[str, int] | None = None
    """The candidates' places by name, where they are known already."""
    lacking: frozenset[str] = frozenset()
    """Replicas that would have to load the request's adapter first."""
    recency: Recency | None = None
    """The measure of what was read of late, where nearly all of the pool's requests are known here."""


class Balancer:
    """The balancer of one pool in one process.

    How many gateways there are is not configured: the engines' statistics show what part of the requests this process knows
    of, its own and those that it is told of. One that knows little keeps to the ring (`choose_along_ring`).
    """

    def __init__(self, config: BalanceConfig, room: RoomConfig, *, rng: random.Random) -> None:
        self.index = PrefixIndex(config.max_blocks)
        self.config = config
        self.room = room
        self.rng = rng
        self.believed_tokens = 0
        """Counter: prompt tokens that the index believed cached, over requests whose engine reported its hits;
        `found_tokens` counts the hits reported."""
        self.found_tokens = 0
        self.use_consistent_hashing = False
        """True while gateways that this process does not hear of send most of the requests, and no engine tells what it has
        cached."""
        self._visibility = TrafficVisibility()
        self._speed = PrefillSpeed(config.prefill_tokens_per_s, config.tuning)
        self._loads: dict[str, Load] = {}
        self._taking: list[Load] = []
        self._rules = Rules(Ring(()), config)
        """Rules of a decision among all replicas that take requests."""
        self._replicas: dict[str, Replica] = {}
        self._ring = Ring(())
        self._snapshot: PoolSnapshot | None = None
        self._recency = Recency()
        self._pool_kv_tokens = _LEAST_POOL_TOKENS
        self._block_tokens = 0.0
        self._read_tokens = 1.0
        self._written_tokens = 0.0

    @property
    def ring(self) -> Ring:
        """The ring of all replicas of the newest snapshot."""
        return self._ring

    def pick(
        self, ask: ReplicaRequest, snapshot: PoolSnapshot, allowed: Collection[str] | None, now: float
    ) -> ReplicaChoice | None:
        """Return the best of the allowed replicas, which are all where `allowed` is None; None when none of them takes requests.
        Full ones are skipped while there is another with much room; where all are busy, what is cached may be
        worth the wait.
        """
        if snapshot is not self._snapshot:
            self._adopt_snapshot(snapshot, now)
        ready = self._taking
        if allowed is not None:
            names = allowed if isinstance(allowed, (set, frozenset, dict)) else frozenset(allowed)
            ready = [load for load in ready if load.name in names]
        high, most = self.room.kv_high, self.room.max_waiting
        roomy = [load for load in ready if load.usage <= high and load.waiting <= most]
        if len(roomy) < len(ready) and any(
            not load.waiting and load.usage < self.config.tuning.roomy_kv_usage for load in roomy
        ):
            ready = roomy
        return self.choose(ask, ready, now) if ready else None

    def choose(self, ask: ReplicaRequest, candidates: Sequence[Load], now: float) -> ReplicaChoice:
        """Choose among at least one candidate. The baseline policies override only this."""
        rules = self._rules
        if ask.adapter is not None or candidates is not self._taking:
            rules = self._rules._replace(places=None, lacking=self._lacking(ask, candidates))
        matched = _whole_where_all_compared(ask, self.index.match(ask.blocks))
        if self.use_consistent_hashing:
            return choose_along_ring(ask, candidates, matched, rules, now)
        return choose(ask, candidates, matched, rules, now, self.rng)

    def see(self, snapshot: PoolSnapshot, now: float) -> None:
        """Take over the replicas, as every question does that is asked with a snapshot."""
        if snapshot is not self._snapshot:
            self._adopt_snapshot(snapshot, now)

    def full(self, snapshot: PoolSnapshot, now: float) -> bool:
        """Return whether every replica that takes requests is full; False when there are none."""
        if snapshot is not self._snapshot:
            self._adopt_snapshot(snapshot, now)
        return pool_full(self._taking, self.room)

    def has_room(self, snapshot: PoolSnapshot, names: Collection[str], now: float) -> bool:
        """Return whether one of these replicas takes requests and is not full."""
        if snapshot is not self._snapshot:
            self._adopt_snapshot(snapshot, now)
        loads = [load for load in self._taking if load.name in names]
        return bool(loads) and not pool_full(loads, self.room)

    def free(self, snapshot: PoolSnapshot, tokens: int, now: float) -> PoolRoom | None:
        """Return the room for one more request; None when no replica with statistics takes requests."""
        if snapshot is not self._snapshot:
            self._adopt_snapshot(snapshot, now)
        return room_of(self._taking, self.room, tokens, now)

    def reading(self, snapshot: PoolSnapshot, now: float, turns: Callable[[str], int]) -> PoolReading | None:
        """Return the number of batch prompts that the replicas may begin to read; None when no replica with statistics
        takes requests. `turns` has the number for a replica that has read the prompts of all its requests, by name.
        """
        if snapshot is not self._snapshot:
            self._adopt_snapshot(snapshot, now)
        return reading_of(self._taking, now, turns)

    @property
    def learned_speed(self) -> float | None:
        """The tokens of prompts that a replica reads a second, as own requests have shown; None before any has."""
        return self._speed.rate if self._speed.is_learned else None

    def merge_prefill_rate(self, tokens_per_s: float) -> None:
        """Take over what another process has learned; what this one learns itself comes first."""
        self._speed.merge(tokens_per_s)

    def take(self, choice: ReplicaChoice, ask: ReplicaRequest, now: float) -> Lease:
        """Count the request as load of the chosen replica, and its prompt as cached there, until the lease ends."""
        load = self.load(choice.replica)
        lease = Lease(load, ask, choice.matched_tokens, now, self._on_lease_end)
        self._update_averages(lease)
        self._note_read(load, lease.uncached)
        # The next request with this prefix finds it cached, or being prefilled ahead of itself.
        lease.pinned = self.index.pin(choice.replica, ask.blocks)
        lease.held = max(1, ask.tokens - int(lease.pinned * ask.block_tokens)) + ask.output_tokens
        self._count_pinned(load)
        load.take(lease, now)
        return lease

    def take_told(self, replica: str, ask: ReplicaRequest, now: float) -> Lease | None:
        """Count a request that another process of the host sent to a replica, as `take` counts an own one; None for a
        replica that is not known here.
        """
        if replica not in self._replicas:
            return None
        matched = cached_tokens(ask, self.index.depths(ask.blocks).get(replica, 0))
        return self.take(ReplicaChoice(replica=replica, why="load", matched_tokens=matched), ask, now)

    def load(self, replica: str) -> Load:
        """Return the load of a replica, created when it is new."""
        load = self._loads.get(replica)
        if load is None:
            load = Load(replica, self.index.bit(replica), self._speed)
            self._loads[replica] = load
        return load

    def forget(self, replica: str) -> None:
        """Drop all state of a replica that has left the pool."""
        self._loads.pop(replica, None)
        self._replicas.pop(replica, None)
        self.index.forget(replica)
        self._snapshot = None

    def _on_lease_end(self, lease: Lease) -> None:
        self._written_tokens = max(0.0, self._written_tokens + lease.output_tokens - lease.ask.output_tokens)
        if lease.cached_tokens is not None:
            self.believed_tokens += lease.matched
            self.found_tokens += lease.cached_tokens
        if self._loads.get(lease.replica) is lease.load:
            # What had been there before is still there, even if the request failed.
            read = lease.pinned if lease.started else int(lease.matched / lease.ask.block_tokens)
            self.index.unpin(lease.replica, lease.ask.blocks[: lease.pinned], read)
            self._count_pinned(lease.load)

    def _count_pinned(self, load: Load) -> None:
        load.pinned_tokens = int(self.index.pinned(load.name) * self._block_tokens)

    def _update_averages(self, lease: Lease) -> None:
        """Update the mean tokens per block and the prompts' share of what engines cache, as they cache completions as
        well.
        """
        ask, decay = lease.ask, self.config.tuning.mean_decay
        self._block_tokens += (ask.block_tokens - self._block_tokens) * ((1 - decay) if self._block_tokens else 1)
        self._read_tokens = self._read_tokens * decay + lease.uncached
        self._written_tokens = self._written_tokens * decay + ask.output_tokens

    def _note_read(self, load: Load, tokens: float) -> None:
        """Count what a request will read there, for as long as the pool's KV caches may hold it."""
        self._recency.note(load, tokens, self._pool_kv_tokens)
        if self._recency.factor > Recency.most:
            for each in self._loads.values():
                each.read_lately /= self._recency.factor
            self._recency.factor = 1.0

    def _adopt_snapshot(self, snapshot: PoolSnapshot, now: float) -> None:
        """Take over the replicas and statistics of a new snapshot, once for each."""
        before, self._replicas = self._replicas, {replica.name: replica for replica in snapshot.replicas}
        for gone in [name for name in self._loads if name not in self._replicas]:
            self.forget(gone)
        for replica in snapshot.replicas:
            if before.get(replica.name) is replica:
                continue
            load = self.load(replica.name)
            if replica.state == "down" or _restarted(load.stats, replica.stats):
                self.index.clear(replica.name)
            load.read(replica.stats, now)
            if replica.stats is not None and load.known:
                self._visibility.saw(load.requests, replica.stats.running + replica.stats.waiting)
            self._size_cache(load)
        self._taking = [self.load(replica.name) for replica in snapshot.taking]
        self.use_consistent_hashing = self._visibility.part < self.config.tuning.min_visibility and not any(
            self.index.is_exact(load.name) for load in self._taking
        )
        if self._ring.names != tuple(self._replicas):
            self._ring = Ring(self._replicas)
        places = {load.name: at for at, load in enumerate(self._taking)}
        sees_all = self._visibility.part >= self.config.tuning.place_visibility
        self._rules = Rules(self._ring, self.config, places, recency=self._recency if sees_all else None)
        told = [load.stats.kv_tokens or 0 for load in self._taking if load.stats is not None]
        self._pool_kv_tokens = max(_LEAST_POOL_TOKENS, sum(told))
        self._snapshot = snapshot

    def _size_cache(self, load: Load) -> None:
        """Set the blocks that the replica's KV cache has room for besides what running requests take."""
        stats = load.stats
        if stats is None or not stats.kv_tokens or not self._block_tokens:
            return
        prompts = self._read_tokens / (self._read_tokens + self._written_tokens)
        capacity = int(stats.kv_tokens / self._block_tokens * prompts)
        others = int(load.busy_tokens / self._block_tokens) - self.index.pinned(load.name)
        self.index.capacity(load.name, capacity, max(0, others))

    def _lacking(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> frozenset[str]:
        if ask.adapter is None:
            return frozenset()
        replicas = self._replicas
        return frozenset(load.name for load in candidates if ask.adapter not in replicas[load.name].adapters)


def cached_tokens(ask: ReplicaRequest, blocks: int) -> int:
    """Return the tokens of the prompt that are taken to be cached where so many of its leading blocks are. Of a long
    prompt only the first blocks are compared; where all of those are cached the rest is taken to be, but for a block.
    """
    rest = _not_compared(ask) if blocks == len(ask.blocks) else 0.0
    return min(ask.tokens, int(blocks * ask.block_tokens + rest))


def _not_compared(ask: ReplicaRequest) -> float:
    """Return the tokens of a long prompt after those that are compared, but for a block; 0 of one that is compared to
    its end.
    """
    return max(0.0, ask.tokens - (len(ask.blocks) + 1) * ask.block_tokens) if ask.blocks else 0.0


def _whole_where_all_compared(ask: ReplicaRequest, matched: Matched) -> Matched:
    """Return the match with the rest of a long prompt counted in where all that is compared is cached."""
    rest = _not_compared(ask)
    if not rest:
        return matched
    (depth, bits), deeper = matched
    all_of_it, more = len(ask.blocks), rest / ask.block_tokens
    found = {bit: each + more if each == all_of_it else each for bit, each in deeper.items()}
    return (depth + more if depth == all_of_it else depth, bits), found


def choose(
    ask: ReplicaRequest, candidates: Sequence[Load], matched: Matched, rules: Rules, now: float, rng: random.Random
) -> ReplicaChoice:
    """Choose a replica; a pure function but for `rng`."""
    tuning = rules.config.tuning
    cold, scores = _weighed(ask, candidates, matched, rules, now, tuning.prefill_weight)
    best = scores.index(min(scores))
    if scores[best] > tuning.beside_wait_s and candidates[best].is_reading(ask, int(ask.tokens - cold[best])):
        cold, scores = _weighed(ask, candidates, matched, rules, now, tuning.prefill_weight_beside)
    near_s = min(scores) + tuning.tie_s
    near = [at for at, score in enumerate(scores) if score <= near_s]
    if rules.recency is not None and min(cold) >= _ALIKE * max(cold):
        near = _least_read_lately(ask, candidates, scores, tuning, rules.recency) or near
    chosen, ringed = near[0], False
    if len(near) > 1:
        home = _home_on_ring(ask, candidates, near, rules)
        ringed = home is not None
        chosen = _less_loaded_of_two(candidates, near, rng) if home is None else home
    name = candidates[chosen].name
    why = _why(cold[chosen], cold, ask.tokens, ringed)
    if rules.lacking and why in {"load", "ring"} and name not in rules.lacking:
        why = "adapter"
    matched_tokens = int(ask.tokens - cold[chosen])
    return ReplicaChoice(replica=name, why=why, matched_tokens=max(0, min(ask.tokens, matched_tokens)))


def _least_read_lately(
    ask: ReplicaRequest, candidates: Sequence[Load], scores: Sequence[float], tuning: BalanceTuning, recency: Recency
) -> list[int]:
    """Return the places of the candidates where, to within this prompt, the least was read of late, among those that are about as
    good for it, whatever they generate; none where one is better than the rest.
    """
    bare = [score - load.batch_s for load, score in zip(candidates, scores, strict=True)]
    near_s = min(bare) + tuning.place_s
    near = [at for at, score in enumerate(bare) if score <= near_s]
    if len(near) == 1:
        return []
    most = min([candidates[at].read_lately for at in near]) + _SLACK * ask.tokens * recency.factor
    return [at for at in near if candidates[at].read_lately <= most]


def choose_along_ring(
    ask: ReplicaRequest, candidates: Sequence[Load], matched: Matched, rules: Rules, now: float
) -> ReplicaChoice:
    """Choose a replica for a gateway that knows little of what the others do: consistent hashing with bounded load, so that all
    of them keep a conversation together, and of the first few on the ring the one that is expected soonest. The home is
    taken to have most of the prompt, since the others send it there. Pure, and without dice.
    """
    places, tuning = rules.places, rules.config.tuning
    if places is None:
        places = {load.name: at for at, load in enumerate(candidates)}
    most = rules.config.load_bound * (sum([load.in_flight for load in candidates]) + 1) / len(candidates)
    homes = [places[name] for name in rules.ring.first(ask.root) if name in places]
    able = [at for at in homes if candidates[at].in_flight < most][: tuning.ring_choices]
    few = [candidates[at] for at in able] or list(candidates)
    cold, scores = _weighed(ask, few, matched, rules, now, tuning.prefill_weight)
    if len(able) > 1:
        (depth, bits), deeper = matched
        cached = (ask.tokens - cold[0] * (1 - tuning.home_cached_part)) / ask.block_tokens
        at_home: Matched = ((depth, bits), {**deeper, few[0].bit: cached})
        _, scores = _weighed(ask, few, at_home, rules, now, tuning.prefill_weight)
    chosen = min(range(len(few)), key=scores.__getitem__)
    why = _why(cold[chosen], cold, ask.tokens, ringed=bool(able))
    matched_tokens = max(0, min(ask.tokens, int(ask.tokens - cold[chosen])))
    return ReplicaChoice(replica=few[chosen].name, why=why, matched_tokens=matched_tokens)


def _weighed(
    ask: ReplicaRequest, candidates: Sequence[Load], matched: Matched, rules: Rules, now: float, work: float
) -> tuple[list[float], list[float]]:
    """Return the scores as `_scores` does, with the time to load an adapter."""
    cold, scores = _scores(ask, candidates, matched, rules.config.tuning, now, work)
    if rules.lacking:
        load_s = rules.config.tuning.adapter_load_s
        scores = [
            score + load_s if load.name in rules.lacking else score
            for load, score in zip(candidates, scores, strict=True)
        ]
    return cold, scores


def _scores(
    ask: ReplicaRequest, candidates: Sequence[Load], matched: Matched, tuning: BalanceTuning, now: float, work: float
) -> tuple[list[float], list[float]]:
    """Return, for each candidate, the prompt tokens that it would have to prefill, at least 1, as engines always
    compute the last one; and the expected seconds to the first token, where one of prefill counts `work`.

    This is done for every replica and request, so it is one loop.
    """
    (depth, bits), deeper = matched
    tokens, block = ask.tokens, ask.block_tokens
    common = max(1.0, tokens - depth * block)
    # `work_of`, taken apart so that little of it is left to do for each replica.
    whole, half = 1 + tokens / tuning.attention_tokens, 1 / 2 / tuning.attention_tokens
    all_known = True
    least_s = _ENDLESS
    cold: list[float] = []
    waits: list[float] = []
    works: list[float] = []
    for load in candidates:
        bit = load.bit
        own = common if bits & bit else tokens
        if bit in deeper:
            own = max(1.0, tokens - deeper[bit] * block)
        cold.append(own)
        wait_s = load.clear_at - now
        rest_s = load.rest_s
        if wait_s < rest_s:  # noqa: PLR1730 - half as long as max()
            wait_s = rest_s
        wait_s += load.extra_s
        if own > load.room_tokens:
            wait_s += (own - load.room_tokens) * load.free_s_per_token
        if wait_s < least_s:  # noqa: PLR1730 - half as long as min()
            least_s = wait_s
        works.append(own * (whole - own * half) * load.token_s)
        waits.append(wait_s + load.batch_s + own * load.hold_s)
        all_known = all_known and load.known
    queued_s = max(least_s, 0.0) + tuning.gateway_wait_weight * ask.waited_s
    if queued_s > 0:
        if least_s > tuning.saturated_wait_s:
            return cold, _saturated_scores(candidates, cold, tokens, tuning)
        work *= 1 + min(tuning.max_crowding, queued_s / tuning.crowded_wait_s)
    scores = [wait_s + work * work_s for wait_s, work_s in zip(waits, works, strict=True)]
    return cold, scores if all_known else _with_floor(candidates, scores, now)


def _saturated_scores(
    candidates: Sequence[Load], cold: Sequence[float], tokens: int, tuning: BalanceTuning
) -> list[float]:
    """Return the scores where all have long queues: prefixes stay together, so that a full fleet does more, and the
    longest queue weighs against it. By parts and not seconds, as endpoint pickers do: whoever's queue is longest is
    never chosen for less than two thirds of a prompt, so nobody starves for another one's cache.
    """
    waiting = [load.waiting for load in candidates]
    least = min(waiting)
    width = max(1, max(waiting) - least)
    return [
        tuning.saturated_prefix_weight * own / max(1, tokens)
        + tuning.saturated_queue_weight * (load.waiting - least) / width
        + tuning.saturated_kv_weight * load.usage
        for load, own in zip(candidates, cold, strict=True)
    ]


def _with_floor(candidates: Sequence[Load], scores: list[float], now: float) -> list[float]:
    """Return the scores where a replica without statistics is not taken for idle: it waits at least as long as the mean of the
    others.
    """
    known = [load.wait_s(now) for load in candidates if load.known]
    if not known:
        return scores
    floor_s = sum(known) / len(known)
    return [
        score if load.known else score + max(0.0, floor_s - load.wait_s(now))
        for load, score in zip(candidates, scores, strict=True)
    ]


def _home_on_ring(ask: ReplicaRequest, candidates: Sequence[Load], near: Sequence[int], rules: Rules) -> int | None:
    """Return the first candidate along the ring that is among the best and not loaded beyond the bound; None when there is
    none.
    """
    total = sum([load.busy_tokens for load in candidates]) + ask.tokens
    most = rules.config.load_bound * total / len(candidates) - ask.tokens
    places = rules.places
    if places is None:
        places = {load.name: at for at, load in enumerate(candidates)}
    for name in rules.ring.first(ask.root):
        at = places.get(name)
        if at is not None and at in near:
            busy_tokens = candidates[at].busy_tokens
            if not busy_tokens or busy_tokens <= most:
                return at
    return None


def _less_loaded_of_two(candidates: Sequence[Load], near: Sequence[int], rng: random.Random) -> int:
    first, second = rng.sample(near, 2)
    return first if candidates[first].busy_tokens <= candidates[second].busy_tokens else second


def _why(own: float, cold: Sequence[float], tokens: int, ringed: bool) -> Why:
    if len(cold) == 1:
        return "only"
    if 2 * own <= tokens or own < max(cold):
        return "prefix"
    return "ring" if ringed else "load"


def _restarted(before: EngineStats | None, after: EngineStats | None) -> bool:
    """Return whether a counter went down: another process answers there, whose cache is empty."""
    if before is None or after is None:
        return False
    pairs = (
        (before.prefix_queries, after.prefix_queries),
        (before.prompt_tokens, after.prompt_tokens),
        (before.output_tokens, after.output_tokens),
    )
    return any(old is not None and new is not None and new < old for old, new in pairs)
