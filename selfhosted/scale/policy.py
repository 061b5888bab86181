"""The autoscaling policy: a pure decision on the desired number of replicas, from signals that carry the time.

Work is prompt tokens, plus generated ones times their weight. A replica that is ordered now is there one cold start
from now, so what counts is the work that a busy minute will bring then: the minutes of the last half-hour, up to which
`ttft_attainment` of the work came, scaled to that time by what earlier days brought, or more where it rises. What a replica carries
is its work over its pressure: how near the worst of its signals (slow tokens, KV cache, queue) is to its limit. A share of that
is planned with, which follows how many first tokens were late and answers slow. Work divided by planned throughput is the number
wanted. More are wanted when what comes now,
with the backlog, would still wait a cold start later, and when queue, memory or first tokens are past their thresholds
for long; before anything is measured, only those thresholds decide. Growth is limited per decision, and by how many
start already; shrinking must have been wanted for minutes, goes in steps with a cooldown, and stops at what running
streams need, at the minimum, at the budget, and whenever something is unknown.

What batches need to be done by their deadlines, beyond what they get, counts as work that comes; when they are done, it
is gone with them.

With the objective `economic`, and while it is known what the work costs elsewhere, how many are wanted is what their
hours are worth (`worth.py`) instead: what the pool does not carry is served elsewhere, and late for nobody. Queues and
late first tokens that last all the same are of requests that cannot go elsewhere, and count beside it.
"""

import math
from collections import deque
from typing import Final, Literal, Protocol

import msgspec

from cost.shown import percent
from selfhosted.config import ScaleConfig
from selfhosted.scale.forecast import Forecast, Seasons
from selfhosted.scale.history import History, Step
from selfhosted.scale.pressure import pressure_of
from selfhosted.scale.signals import Signals
from selfhosted.scale.throughput import PoolThroughput, SavedThroughput
from selfhosted.scale.worth import Market, SavedWorth, Worth
from settings.decoding import DECODE_ERRORS

Reason = Literal[
    "steady", "minimum", "maximum", "wake", "demand", "forecast", "queue", "memory", "ttft", "streams",
    "budget", "idle", "unknown", "stabilising", "cooldown", "worth", "batch",
]  # fmt: skip
"""The rule that decided: a metrics label with fixed values."""

# Gaps between decisions that are longer say nothing of the time between them.
_GAP_S: Final = 120.0
# Windows over which throughput, and the fraction of late first tokens, are measured.
_BUSY_S: Final = 15.0
_MINUTE_S: Final = 60.0
# When so many first tokens are late, replicas have as much as they can do.
_SATURATED: Final = 0.5
# Signals are smoothed over half a cold start: a burst that is over before a replica could help needs none.
_SHORTEST_S: Final = 15.0
# A replica that does less than this part of what a saturated one does has little to do.
_LIGHT: Final = 0.25
_LONGEST_S: Final = 150.0
_DRAIN_S: Final = 30.0
_HOUR_S: Final = 3_600.0
# Cold starts for which fewer must have been enough: whoever gives a replica back and wants it again misses it for one, and pays.
_REGRETS: Final = 1.5
# Part of what is ordered above which the rise of a new pool is taken to go on: with more to spare it is waited for.
_HALF: Final = 0.5
# Target use after shrinking, as a fraction of the threshold at which the pool would grow again.
_AFTER_SHRINKING: Final = 0.85
_LARGEST_STATE: Final = 128 * 1024
_WINDOW_SLOTS: Final = 64
# Replicas that start at once, for each that is ready. Simulated from two replicas that know nothing, on the traces that constants are
# chosen on: 6 instead of 3 takes a third off what a chat service misses beyond the least possible, and 12 costs more for no fewer.
_MOST_STARTING: Final = 6
_MOST_DESIRED: Final = 10_000
_MOST_REPLICAS: Final = 10_000
"""Upper bound of the computed number of replicas, as a measured throughput can be next to zero."""
# Requests go elsewhere at waits that are spread evenly over the last half of the aim.
_BEARS: Final = 0.75
# Less than this part of what one replica carries is too little to wake or to keep a pool for.
_NEGLIGIBLE: Final = 0.02


class ScaleDecision(msgspec.Struct, frozen=True):
    """The desired number of replicas, without those that drain."""

    desired: int
    reason: Reason
    why: str
    """Explanation for people."""


class ScaleRule(Protocol):
    """Interface of the policy and of the rules that it is compared with."""

    def decide(self, signals: Signals) -> ScaleDecision: ...


class _SavedState(msgspec.Struct):
    """The policy's state that survives a restart."""

    desired: int | None = None
    seasons: Seasons | None = None
    learnt: SavedThroughput | None = None
    idle_memory: float | None = None
    worth: SavedWorth | None = None
    steps: list[Step] | None = None


class _DesiredSize(msgspec.Struct, frozen=True):
    replicas: int
    reason: Reason
    why: str


class ScalePolicy:
    """The autoscaling policy of one pool. Everything it remembers is bounded."""

    def __init__(
        self,
        config: ScaleConfig,
        *,
        usd_per_replica_hour: float | None = None,
        output_weight: float = 4.0,
        carries: float | None = None,
        busy_carries: float | None = None,
        economic: bool = False,
        state: str = "",
    ) -> None:
        """`output_weight`: work of a generated token, in prompt tokens. `carries`: assumed work per second of a replica
        until it is measured; `busy_carries`: the same of one that is always busy. `economic`: wants the replicas that
        are worth their hours. `state`: the result of an earlier instance's `state`.
        """
        kept = _parse_state(state)
        self._config = config
        self._usd = usd_per_replica_hour
        self._output_weight = output_weight
        self._carried = PoolThroughput(
            1 - config.ttft_attainment, config.tpot_target_s, prior=carries, learnt=kept.learnt
        )
        self._forecast = Forecast(kept.seasons)
        self._desired = kept.desired
        self._history = History(kept.steps)
        self._idle_memory = kept.idle_memory
        self._busy_carries = busy_carries
        self._worth = self._worth_of(kept.worth) if economic and usd_per_replica_hour is not None else None
        self._last: Signals | None = None
        smooth_s = min(_LONGEST_S, max(_SHORTEST_S, config.cold_start_s / 2))
        self._work = _Smooth(smooth_s)
        self._queue = _Smooth(smooth_s)
        self._memory = _Smooth(smooth_s)
        self._late = _Smooth(smooth_s)
        self._arrivals = _Smooth(smooth_s)
        self._busy = _Window(_BUSY_S)
        self._minute = _Window(_MINUTE_S)
        self._busiest = 0.0
        self._waited = True
        self._started_at = -math.inf
        self._limited_by = ""
        self._up = _Extreme(config.up_stabilisation_s, least=True)
        # Where what the pool does not carry goes elsewhere, nobody misses what was given back.
        regrets_s = _REGRETS * config.cold_start_s if self._worth is None else 0.0
        self._down = _Extreme(max(config.down_stabilisation_s, regrets_s), least=False)
        self._stepped_down_at: float | None = None

    @property
    def desired(self) -> int | None:
        """The last desired number; None before the first decision."""
        return self._desired

    @property
    def carries(self) -> float | None:
        """Work per second, in prompt tokens, that one replica is planned to carry; None until it is known."""
        return self._carried.per_replica

    def state(self) -> str:
        """Return the learnt state as JSON, for the next instance after a restart."""
        seasons = self._forecast.seasons
        return msgspec.json.encode(
            _SavedState(
                self._desired,
                Seasons(
                    day=_rounded(seasons.day),
                    day_seen=seasons.day_seen,
                    week=_rounded(seasons.week),
                    week_seen=seasons.week_seen,
                    minutes=seasons.minutes,
                ),
                self._carried.learnt,
                self._idle_memory,
                None if self._worth is None else self._worth.saved(),
                self._history.steps,
            )
        ).decode()

    def decide(self, signals: Signals) -> ScaleDecision:
        self._learn(signals)
        current = signals.supply if self._desired is None else self._desired
        wish = self._most_wanted(signals, current)
        decision = self._limit(signals, current, wish)
        self._desired = decision.desired
        self._remember(signals, decision)
        return decision

    def _remember(self, signals: Signals, decision: ScaleDecision) -> None:
        work, config = self._work_of(signals), self._config
        if work is None:
            return
        self._history.observe(work, signals.wall_s, desired=decision.desired, ready=signals.ready)
        then = self._forecast.busy(config.cold_start_s, config.ttft_attainment) if config.forecast else None
        if then is not None:
            self._history.expect(then, signals.wall_s + config.cold_start_s)

    # Learning.

    def _learn(self, signals: Signals) -> None:
        last, self._last = self._last, signals
        if last is None or not 0 < signals.at_s - last.at_s <= _GAP_S:
            return
        seconds = signals.at_s - last.at_s
        work = self._work_of(signals)
        self._queue.add(signals.queued / max(1, signals.ready), seconds)
        memory = self._memory_of(signals)
        if memory is not None:
            self._memory.add(memory, seconds)
        if signals.missed is not None and not self._is_behind(signals):
            self._late.add(signals.missed, seconds)
        if work is None:
            return
        self._work.add(work, seconds)
        if self._config.forecast:
            self._forecast.observe(work, signals.at_s, signals.wall_s, arrivals_per_s=signals.arrivals_per_s)
        self._arrivals.add(signals.arrivals_per_s or 0.0, seconds)
        self._learn_carried(signals, seconds)
        self._learn_worth(signals, work, seconds)

    def _worth_of(self, saved: SavedWorth | None) -> Worth:
        config = self._config
        return Worth(
            least=config.min_replicas,
            most=config.max_replicas,
            cold_start_s=config.cold_start_s,
            usual=self._forecast.seasons.at if config.forecast else _never_usual,
            bears_s=_BEARS * config.ttft_target_s,
            saved=saved,
        )

    def _learn_worth(self, signals: Signals, work: float, seconds: float) -> None:
        carries = self._carried.learnt.full or self._busy_carries
        if self._worth is None or self._usd is None or carries is None:
            return
        if signals.elsewhere_usd is not None:
            market = Market(replica_usd_per_s=self._usd / _HOUR_S, elsewhere_usd=signals.elsewhere_usd, carries=carries)
            # What batches lack is work as well: it is served elsewhere where no engine is worth it.
            mean, arrivals = self._work.value or 0.0, self._arrivals.value or 0.0
            request_s = mean / arrivals / carries if arrivals else 0.0
            self._worth.observe(work + signals.batch_work_per_s, market, seconds, signals.wall_s, request_s=request_s)

    def _learn_carried(self, signals: Signals, seconds: float) -> None:
        served = signals.served_tokens_per_s
        if served is None:
            served = signals.input_tokens_per_s or 0.0
        served += self._output_weight * (signals.output_tokens_per_s or 0.0)
        if signals.starting > signals.ready or self._is_behind(signals):
            self._started_at = signals.at_s
        if not signals.known:
            return
        missed, busy, minute = signals.missed, self._busy, self._minute
        self._waited = self._waited and signals.queued >= max(1, signals.ready)
        if busy.add(served, signals.ready, seconds):
            self._carried.observe_replica(
                busy.each, waited=self._waited, full=self._waited or (missed or 0.0) > _SATURATED
            )
            self._busiest = max(self._busiest, busy.each)
            self._waited = True
            busy.begin()
        if minute.add(served, signals.ready, seconds):
            carried, full = self._carried, self._carried.learnt.full
            if signals.tpot_s is not None:
                carried.observe_tokens(signals.tpot_s, signals.running / max(1, signals.ready))
            pressure = pressure_of(signals, self._config, alone_s=carried.alone_s)
            if pressure is not None:
                carried.observe_pressure(minute.each, pressure.ratio)
                self._limited_by = f" before {pressure.words}"
            # While more start than work, or a queue is left from then, and until that is over, late first tokens say nothing about the plan that ordered them.
            if missed is not None and signals.at_s - self._started_at > 2 * _MINUTE_S:
                light = (full is not None and self._busiest < _LIGHT * full) or (
                    pressure is not None and pressure.ratio < _LIGHT
                )
                carried.observe_minute(minute.amount, missed, signals.slow or 0.0, light=light, each=minute.each)
            self._busiest = 0.0
            minute.begin()

    def _is_behind(self, signals: Signals) -> bool:
        """Return whether a queue is left from before the replicas that were ordered for it: what is late then would not be with more."""
        waits = signals.unanswered > self._config.waiting_high * signals.ready
        return waits and bool(signals.starting or signals.stuck)

    def _work_of(self, signals: Signals) -> float | None:
        if signals.input_tokens_per_s is None:
            return None
        return signals.input_tokens_per_s + self._output_weight * (signals.output_tokens_per_s or 0.0)

    def _memory_of(self, signals: Signals) -> float | None:
        """Return the fraction of working memory in use: the larger of KV usage and GPU memory above its idle level;
        None when unknown.
        """
        uses = []
        if signals.kv_used is not None and signals.ready:
            uses.append(signals.kv_used / signals.ready)
        if signals.gpu_memory is not None:
            idle = self._idle_memory
            self._idle_memory = signals.gpu_memory if idle is None else min(idle, signals.gpu_memory)
            if self._idle_memory < 1:
                uses.append((signals.gpu_memory - self._idle_memory) / (1 - self._idle_memory))
        return max(uses, default=None)

    def _backlog(self, signals: Signals) -> float:
        """Return the work of all waiting requests."""
        if signals.waiting_tokens is not None:
            return signals.waiting_tokens
        work, arrivals = self._work.value, self._arrivals.value
        return signals.queued * work / arrivals if work and arrivals else 0.0

    # Wishing.

    def _carries_now(self, signals: Signals) -> float | None:
        """Return what a replica is planned to carry, or more where the minute that is not over shows more already: what it brought is
        counted as work that comes before it is learnt how well it was carried, and one light minute before it tells little.
        """
        carries = self.carries
        if carries is None or self._minute.seconds < _BUSY_S:
            return carries
        pressure = pressure_of(signals, self._config, alone_s=self._carried.alone_s)
        shown = None if pressure is None else self._carried.with_minute(self._minute.each, pressure.ratio)
        return carries if shown is None else max(carries, shown)

    def _most_wanted(self, signals: Signals, current: int) -> _DesiredSize:
        if self._worth is not None and signals.elsewhere_usd is not None:
            known = self._worth.wanted
            # Until it is known what an hour is worth, nothing is bought: whoever comes is served elsewhere.
            worth = _DesiredSize(current if known is None else known, "worth", self._worth.why)
            return max(self._economic_wishes(signals, worth), key=lambda wish: wish.replicas)
        wishes = [self._floor(signals), self._wake(signals)]
        carries = self._carries_now(signals)
        if carries is not None and self._work.value is not None:
            wishes += self._by_work(signals, current, carries)
            wishes += self._by_thresholds(signals, current, patient=True)
        else:
            wishes += self._by_thresholds(signals, current, patient=False)
            wishes.append(self._without_model(signals, current))
        return max(wishes, key=lambda wish: wish.replicas)

    def _economic_wishes(self, signals: Signals, worth: _DesiredSize) -> list[_DesiredSize]:
        """Return the replicas that save more than their hours cost; more of them only for requests that still wait when all others went elsewhere."""
        least = self._config.min_replicas
        floor = _DesiredSize(least, "minimum", f"min_replicas is {least}")
        wishes = [worth if worth.replicas > least else floor]
        if not signals.ready and (self._queue.value or 0.0) > _SATURATED:
            wishes.append(_DesiredSize(1, "wake", "there is work that nobody else can do"))
        late = self._by_thresholds(signals, signals.supply, patient=True)
        return wishes + [wish for wish in late if wish.reason in {"queue", "ttft"}]

    def _floor(self, signals: Signals) -> _DesiredSize:
        needed = _streams_need(signals, self._config.kv_high)
        if needed > self._config.min_replicas:
            return _DesiredSize(needed, "streams", f"what runs fills {needed} caches")
        return _DesiredSize(self._config.min_replicas, "minimum", f"min_replicas is {self._config.min_replicas}")

    def _wake(self, signals: Signals) -> _DesiredSize:
        if signals.batch_work_per_s > 0 and not (signals.queued or signals.running):
            return _DesiredSize(1, "batch", "batches have a deadline")
        if signals.queued or signals.running or signals.arrivals_per_s or signals.input_tokens_per_s:
            return _DesiredSize(1, "wake", "there is work")
        return _DesiredSize(0, "idle", "there is no work")

    def _by_work(self, signals: Signals, current: int, carries: float) -> list[_DesiredSize]:
        work, backlog = self._work.value or 0.0, self._backlog(signals)
        ahead_s = max(self._config.cold_start_s, _DRAIN_S)
        if backlog + (work - carries * signals.supply) * ahead_s > 0:
            # Replicas ordered now have to carry what comes, and the backlog within another cold start.
            needed = _replicas(work + backlog / ahead_s, carries)
        else:
            # A backlog that will be gone before a replica could start needs none.
            needed = min(current, _replicas(work, carries))
        wishes = [_DesiredSize(needed, "demand", f"{work:,.0f} tokens/s now, {self._carries(carries)}")]
        batch = signals.batch_work_per_s
        if batch > 0:
            why = f"batches need {batch:,.0f} tokens/s more by their deadlines, {self._carries(carries)}"
            wishes.append(_DesiredSize(_replicas(work + batch, carries), "batch", why))
        if self._config.forecast:
            wishes += self._by_forecast(current, carries)
        return wishes

    def _carries(self, carries: float) -> str:
        return f"a replica carries {carries:,.0f}{self._limited_by}"

    def _by_forecast(self, current: int, carries: float) -> list[_DesiredSize]:
        """Return the replicas needed in one cold start, and keeps those needed until then."""
        config, forecast = self._config, self._forecast
        then = forecast.busy(config.cold_start_s, config.ttft_attainment)
        if then is None:
            return []
        until = [forecast.busy(config.cold_start_s * part, config.ttft_attainment) or 0.0 for part in (0, 0.5)]
        if until[0] > _HALF * carries * current:
            # It is not yet pressed, but will be before more are there if the rise of what has just begun goes on.
            then = forecast.busy(config.cold_start_s, config.ttft_attainment, new=True) or then
        order, keep = _replicas(then, carries), min(current, _replicas(max(until), carries))
        why = f"{then:,.0f} tokens/s expected in busy minutes, {self._carries(carries)}"
        return [_DesiredSize(max(order, keep), "forecast", why)]

    def _by_thresholds(self, signals: Signals, current: int, *, patient: bool) -> list[_DesiredSize]:
        """Return the wish by the thresholds. With `patient`, as the work model is trusted, only excess that lasts for
        about half a cold start counts.
        """
        if not signals.ready:
            return []
        config, ready = self._config, signals.ready
        queue = signals.queued / ready
        memory = self._memory_of(signals)
        late = signals.missed
        if patient:
            queue, memory, late = min(queue, self._queue.value or 0.0), self._memory.value, self._late.value
        late = max(0.0, (late or 0.0) - self._carried.learnt.anyway)
        wishes = []
        if queue > config.waiting_high:
            wishes.append(
                _DesiredSize(_scaled(ready, queue / config.waiting_high), "queue", f"{queue:.1f} wait a replica")
            )
        if memory is not None and memory > config.memory_high:
            wishes.append(
                _DesiredSize(
                    _scaled(ready, memory / config.memory_high), "memory", f"{percent(memory, 0)} of memory in use"
                )
            )
        kv = None if signals.kv_used is None else signals.kv_used / ready
        if kv is not None and kv > config.kv_high:
            wishes.append(
                _DesiredSize(_scaled(ready, kv / config.kv_high), "memory", f"{percent(kv, 0)} of the KV cache in use")
            )
        if late > 2 * (1 - config.ttft_attainment):
            wishes.append(_DesiredSize(self._one_more(ready), "ttft", f"{percent(late, 0)} of first tokens are late"))
        # Those that start will help already; more are wanted only when they are there and it is not better.
        most = current if signals.starting else ready + config.max_step_up
        return [msgspec.structs.replace(wish, replicas=min(wish.replicas, most)) for wish in wishes]

    def _one_more(self, ready: int) -> int:
        """Return one replica more than ready, but no more than the expected work needs at the smallest planned share:
        beyond that, first tokens must be late for another reason.
        """
        least, config = self._carried.at_least, self._config
        if least is None:
            return ready + 1
        busy = self._forecast.busy(0.0, config.ttft_attainment) or 0.0
        return min(ready + 1, _replicas(max(busy, self._work.value or 0.0), least))

    def _without_model(self, signals: Signals, current: int) -> _DesiredSize:
        """Return the wish without a work model: the current number or, when memory is nearly unused, as few as hold
        what runs.
        """
        memory = self._memory_of(signals)
        calm = not signals.queued and not (signals.missed or 0.0) > 1 - self._config.ttft_attainment
        if memory is None or not calm or signals.kv_used is None:
            idle = calm and not signals.running and not signals.arrivals_per_s and signals.kv_used is not None
            return _DesiredSize(0 if idle else current, "steady", "nothing says otherwise")
        if memory < self._config.memory_low:
            enough = math.ceil(memory * signals.ready / (_AFTER_SHRINKING * self._config.memory_high) - 1e-9)
            return _DesiredSize(min(current, enough), "idle", f"{percent(memory, 0)} of memory in use")
        return _DesiredSize(current, "steady", f"{percent(memory, 0)} of memory in use")

    # Limiting.

    def _limit(self, signals: Signals, current: int, wish: _DesiredSize) -> ScaleDecision:
        most, whose = self._ceiling(signals, current)
        wanted = wish.replicas
        least = self._up.of(wanted, signals.at_s)
        # Never fewer than was wanted within the last minutes.
        highest = self._down.of(wanted, signals.at_s)
        if most < current:
            return self._shrink(signals, current, most, _DesiredSize(most, whose, f"no more than {most} are allowed"))
        if wanted > current:
            return self._grow(signals, current, least, most, whose, wish)
        if wanted == current:
            reason: Reason = "steady" if wish.reason in {"demand", "wake", "idle"} else wish.reason
            return ScaleDecision(current, reason, wish.why)
        if highest >= current:
            return ScaleDecision(current, "stabilising", f"fewer would do: {wish.why}")
        return self._shrink(signals, current, int(highest), wish)

    def _grow(
        self, signals: Signals, current: int, least: float, most: int, whose: Reason, wish: _DesiredSize
    ) -> ScaleDecision:
        if least <= current:
            return ScaleDecision(current, "stabilising", wish.why)
        wanted, config = int(least), self._config
        # Until those that start have shown what they change, no more than that many times what works is ordered.
        in_flight = max(config.max_step_up, _MOST_STARTING * signals.ready)
        reach = min(current + config.max_step_up, max(current, signals.ready + in_flight))
        if wish.reason == "worth":
            # What they change was known before: it follows from what came, and not from how the pool does.
            reach = current + config.max_step_up
        desired = min(wanted, most, max(reach, config.min_replicas))
        if desired < wanted and desired == most:
            return ScaleDecision(desired, whose, f"{wish.why}, but no more than {most} are allowed")
        return ScaleDecision(desired, wish.reason, wish.why)

    def _shrink(self, signals: Signals, current: int, wanted: int, wish: _DesiredSize) -> ScaleDecision:
        config = self._config
        if not signals.known or (signals.kv_used is None and signals.running):
            return ScaleDecision(current, "unknown", "statistics are unknown, so nothing shrinks")
        since = self._stepped_down_at
        if since is not None and signals.at_s - since < config.cooldown_s:
            return ScaleDecision(current, "cooldown", f"fewer would do: {wish.why}")
        step = max(config.max_step_down, math.floor(current * config.max_step_down_share))
        desired = max(wanted, current - step, 0)
        held = _streams_need(signals, config.kv_high)
        if self._worth is not None and signals.elsewhere_usd is not None:
            # The last replica's streams end while it drains, and what comes meanwhile goes elsewhere.
            held = min(held, current - 1)
        if desired < held:
            desired = min(current, held)
            if desired == current:
                return ScaleDecision(current, "streams", f"what runs fills {held} caches")
        self._stepped_down_at = signals.at_s
        return ScaleDecision(
            desired, "idle" if wish.reason in {"demand", "forecast", "wake", "batch"} else wish.reason, wish.why
        )

    def _ceiling(self, signals: Signals, current: int) -> tuple[int, Reason]:
        """Return the ceiling, and the rule that sets it. With a budget but no known price, the pool may not grow."""
        most: int = self._config.max_replicas
        budget = self._config.max_usd_per_hour
        if budget is None:
            return most, "maximum"
        if self._usd is None or self._usd <= 0:
            return min(most, current), "budget"
        affordable = math.floor(budget / self._usd + 1e-9)
        if affordable >= most:
            return most, "maximum"
        # A draining replica costs as much as a working one.
        return affordable if current > affordable else max(current, affordable - signals.draining), "budget"


class _Smooth:
    """Exponentially weighted mean with a time constant of `over_s` seconds."""

    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self._sum = self._weight = 0.0

    def add(self, value: float, seconds: float) -> None:
        if math.isfinite(value):
            keep = math.exp(-seconds / self._over_s)
            self._sum = self._sum * keep + value * (1 - keep)
            self._weight = self._weight * keep + (1 - keep)

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight > 0 else None


class _Window(msgspec.Struct):
    """Amounts summed over a window of `length_s` seconds."""

    length_s: float
    seconds: float = 0.0
    amount: float = 0.0
    replica_s: float = 0.0

    def add(self, per_s: float, ready: int, seconds: float) -> bool:
        """Add a rate over some seconds. Returns True when the window is full."""
        self.seconds += seconds
        self.amount += per_s * seconds
        self.replica_s += ready * seconds
        return self.seconds >= self.length_s

    @property
    def each(self) -> float:
        """Amount per second and ready replica."""
        return self.amount / self.replica_s if self.replica_s else 0.0

    def begin(self) -> None:
        self.seconds = self.amount = self.replica_s = 0.0


class _Extreme:
    """The least or the most that was wanted in the last `window_s` seconds, kept in a few slots."""

    def __init__(self, window_s: float, *, least: bool) -> None:
        self._window_s = window_s
        self._slot_s = window_s / _WINDOW_SLOTS
        self._least = least
        self._slots: deque[tuple[float, float]] = deque(maxlen=_WINDOW_SLOTS + 2)
        self._since: float | None = None

    def of(self, wanted: float, at_s: float) -> float:
        if self._window_s <= 0:
            return wanted
        if self._since is None:
            self._since = at_s
        choose = min if self._least else max
        if self._slots and at_s - self._slots[-1][0] < self._slot_s:
            begun, value = self._slots.pop()
            self._slots.append((begun, choose(value, wanted)))
        else:
            self._slots.append((at_s, wanted))
        while self._slots[0][0] < at_s - self._window_s - self._slot_s:
            self._slots.popleft()
        if at_s - self._since < self._window_s:
            # Not watched for long enough to say that it was wanted all the time.
            return -math.inf if self._least else math.inf
        return choose(value for _, value in self._slots)


def _never_usual(wall_s: float) -> None:
    del wall_s


def steps_of(state: str) -> list[Step]:
    """Return what was expected beside what came, from a saved state; none where it cannot be read."""
    return History(_parse_state(state).steps).steps


def _parse_state(state: str) -> _SavedState:
    """Return the saved state; an empty one when it cannot be read."""
    if not state or len(state) > _LARGEST_STATE:
        return _SavedState()
    try:
        kept = msgspec.json.decode(state, type=_SavedState)
    except DECODE_ERRORS:
        return _SavedState()
    sane = kept.desired is None or 0 <= kept.desired <= _MOST_DESIRED
    return kept if sane else _SavedState()


def _rounded(values: list[float]) -> list[float]:
    """Return the values rounded to four digits, which is precise enough and a quarter of the bytes."""
    return [float(f"{value:.4g}") for value in values]


def _streams_need(signals: Signals, kv_high: float) -> int:
    """Return the number of replicas whose caches hold all that runs."""
    return 0 if signals.kv_used is None else math.ceil(signals.kv_used / kv_high - 1e-9)


def _replicas(work: float, carries: float) -> int:
    """Return the number of replicas that carry the work. Next to no work counts as none: otherwise a pool would never scale to
    zero.
    """
    return 0 if work <= _NEGLIGIBLE * carries else math.ceil(min(work / carries, _MOST_REPLICAS) - 1e-9)


def _scaled(ready: int, ratio: float) -> int:
    return math.ceil(ready * min(ratio, 100.0) - 1e-9)
