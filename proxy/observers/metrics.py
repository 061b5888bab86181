"""What Prometheus reads at /metrics: every series, with label sets that cannot grow without end.

Reference: docs/observability.md; a test holds the two together.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Final, Literal, get_args

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from cost.budgets.budget import Standing
from cost.ledger.watch import Checked
from cost.prices import NANO_PER_USD
from proxy.limits.limit import Kind, Scope
from proxy.observers.logs import safe_name
from proxy.outcome import AttemptResult, RequestOutcome
from proxy.queues.work import QueueState, Why
from selfhosted.replica import EngineStats, ReplicaState

BreakerState = Literal["closed", "half-open", "open"]

MAX_LABEL_VALUES: Final = 1_000
"""Distinct values of one label; every later one is counted as `other`."""
OTHER: Final = "other"
NONE: Final = "none"

# The promise is a first token within 1 s for nine requests in ten, so the steps are finest around it.
TTFT_BUCKETS: Final = (
    0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0,
)  # fmt: skip
# Reading speed is 40 to 50 ms a token; a GPU that is full shows above it, a batch engine below.
TPOT_BUCKETS: Final = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
DURATION_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Scoring must stay under a millisecond.
CLASSIFIER_BUCKETS: Final = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.002, 0.005, 0.01, 0.05)
# A call takes a fraction of a millisecond; from 50 ms on it is slow, and from 100 ms on it is not waited for.
REDIS_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
# What could start at once is in the first; the promise of a first token is 1 s, and the longest waits are batch work's.
QUEUE_WAIT_BUCKETS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)

_BREAKER_VALUES: Final[Mapping[BreakerState, int]] = {"closed": 0, "half-open": 1, "open": 2}
# Children are looked up by raw values, which the caps do not bound; forgetting them all is cheap and rare.
_MAX_CACHED: Final = 20_000
_REPLICA_STATES: Final[tuple[ReplicaState, ...]] = get_args(ReplicaState)
_RESULTS: Final[tuple[AttemptResult, ...]] = get_args(AttemptResult)
# The first status above every success.
_FIRST_ERROR_STATUS: Final = 400


class _Cap:
    """The first values of one label keep their names; the rest share one."""

    def __init__(self, max_values: int) -> None:
        self._max = max_values
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= self._max:
            return OTHER
        self._seen.add(value)
        return value

    @property
    def seen(self) -> frozenset[str]:
        return frozenset(self._seen)

    def forget(self, value: str) -> None:
        """Its place goes to the next new one."""
        self._seen.discard(value)


class _Served(msgspec.Struct, frozen=True):
    """The children that one kind of request writes to."""

    requests: Counter
    duration: Histogram
    ttft: Histogram
    tpot: Histogram
    input_tokens: Counter
    cached_tokens: Counter
    output_tokens: Counter
    cost: Counter
    baseline: Counter
    unpriced: Counter


class Metrics:
    """Counts how requests ended, and a few things that are true right now. Thread-safe, never raises.

    With several workers, set PROMETHEUS_MULTIPROC_DIR to an empty directory before the first import:
    each worker writes its own files there and any of them renders the sum.
    """

    def __init__(self, *, max_label_values: int = MAX_LABEL_VALUES) -> None:
        # A creation time beside every counter would double what a scrape carries.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._multiprocess = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        self._served: dict[tuple[str, str | None, str, int], _Served] = {}
        self._attempt_children: dict[tuple[str, str], Counter] = {}
        self._team, self._target, self._tier = _Cap(max_label_values), _Cap(max_label_values), _Cap(max_label_values)
        self._deployment, self._code, self._source = (
            _Cap(max_label_values),
            _Cap(max_label_values),
            _Cap(max_label_values),
        )
        self._budgets: set[str] = set()
        self._declare_requests()
        self._declare_money()
        self._declare_state()
        self._declare_learning()
        if not self._multiprocess:
            ProcessCollector(registry=self.registry)

    def _declare_requests(self) -> None:
        self._requests = self._counter(
            "weighbridge_requests", "Requests by the HTTP status the caller saw.", ("team", "target", "tier", "status")
        )
        self._refusals = self._counter(
            "weighbridge_refusals", "Requests that ended with an error, by its code.", ("code", "status")
        )
        self._duration = self._histogram(
            "weighbridge_request_duration_seconds", "From the first byte in to the last byte out.", DURATION_BUCKETS
        )
        self._ttft = self._histogram("weighbridge_ttft_seconds", "Seconds to the first token.", TTFT_BUCKETS)
        self._tpot = self._histogram(
            "weighbridge_inter_token_seconds",
            "Seconds an output token after the first, mean of a request.",
            TPOT_BUCKETS,
        )
        self._attempts = self._counter(
            "weighbridge_attempts", "Attempts at deployments, by how they ended.", ("deployment", "result")
        )
        self._fallbacks = self._counter(
            "weighbridge_fallbacks", "Times a request moved on to another target.", ("from_target", "to_target")
        )
        self._escalations = self._counter(
            "weighbridge_escalations",
            "Weak answers that a better target's answer stood in for.",
            ("from_target", "to_target", "weakness"),
        )
        self._classifier = Histogram(
            "weighbridge_classifier_seconds",
            "Seconds to score one prompt.",
            ("source",),
            buckets=CLASSIFIER_BUCKETS,
            registry=self.registry,
        )
        self._trained = Gauge(
            "weighbridge_classifier_trained",
            "1 when the trained model weighs prompts, 0 when the plain rule stands in for it.",
            registry=self.registry,
            multiprocess_mode="livemin",
        )

    def _declare_money(self) -> None:
        self._tokens = self._counter(
            "weighbridge_tokens",
            "Tokens by direction; cached_input is a part of input.",
            ("team", "target", "tier", "direction"),
        )
        self._cost = self._counter(
            "weighbridge_cost_usd", "What answers cost. The ledger is the truth.", ("team", "target")
        )
        self._baseline = self._counter(
            "weighbridge_baseline_usd",
            "What the same answers would have cost on the baseline target.",
            ("team", "target"),
        )
        self._unpriced = self._counter(
            "weighbridge_unpriced_requests", "Answers whose cost is unknown and in no sum.", ("team", "target")
        )

    def _declare_state(self) -> None:
        self._in_flight = Gauge(
            "weighbridge_in_flight_requests",
            "Requests being served now.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        # Each worker has its own loop: the latest one is shown.
        self._loop_lag = Gauge(
            "weighbridge_loop_lag_seconds",
            "How late a worker's event loop was at worst within the last second or so.",
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._overload_refusals = Counter(
            "weighbridge_overload_refusals",
            "Requests refused at the door because the worker had more work than it can do.",
            registry=self.registry,
        )
        self._declare_queues()
        self._choices = self._counter(
            "weighbridge_balancer_choices",
            "Requests sent to replicas of a pool, by why that replica: prefix, adapter, ring, load, only.",
            ("pool", "why"),
        )
        self._declare_discovery()
        self._declare_replicas()
        self._desired = Gauge(
            "weighbridge_pool_desired_replicas",
            "How many replicas a pool should have, without those that drain; no series until it was decided.",
            ("pool",),
            multiprocess_mode="livemostrecent",
            registry=self.registry,
        )
        self._scale_decisions = self._counter(
            "weighbridge_scale_decisions",
            "Decisions on how many replicas a pool should have, by what decided; made by one process of all.",
            ("pool", "reason"),
        )
        # Each worker has its own breakers: the worst view is shown.
        self._breaker = Gauge(
            "weighbridge_breaker_state",
            "0 closed, 1 half-open, 2 open.",
            ("deployment",),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._journal_depth = Gauge(
            "weighbridge_journal_depth",
            "Ledger entries in the journal that are not in the database yet.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        # Every process knows of the last check, whoever did it, so the newest view is the true one.
        self._ledger_differences = Gauge(
            "weighbridge_ledger_differences",
            "Figures of the roll-ups that were not what the ledger says when it was checked last. Must be 0.",
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        self._ledger_verified = Gauge(
            "weighbridge_ledger_verified_timestamp_seconds",
            "When the roll-ups were last held against the ledger; 0 before the first time.",
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        self._redis_call = Histogram(
            "weighbridge_redis_call_seconds",
            "Seconds from sending a call to the shared Redis until its reply.",
            buckets=REDIS_BUCKETS,
            registry=self.registry,
        )
        self._redis_failures = self._counter(
            "weighbridge_redis_failures", "Calls to the shared Redis that failed or were slow, by kind.", ("kind",)
        )
        self._idempotent = self._counter(
            "weighbridge_idempotent_requests",
            "What happened with Idempotency-Keys: claimed, replayed, in_flight, reused, kept, freed, too_large, not_kept, "
            "refused, unavailable, taken_over, lost, failed_writes, purged.",
            ("event",),
        )
        # The worst view is shown: one process without Redis enforces its share alone.
        self._redis_up = Gauge(
            "weighbridge_redis_up",
            "1 while the shared Redis answers in time; 0 while it does not, and where there is none.",
            registry=self.registry,
            multiprocess_mode="livemin",
        )
        self._limits_local = Counter(
            "weighbridge_limits_local",
            "Requests whose limits were decided by this process's share of them.",
            registry=self.registry,
        )
        self._limits_refused = Counter(
            "weighbridge_limits_refused",
            "Requests refused by a limit, by whose it was and what was used up.",
            ["scope", "kind"],
            registry=self.registry,
        )
        self._limits_shared = Gauge(
            "weighbridge_limits_shared",
            "1 while limits are decided in the shared Redis; 0 while each process enforces its share.",
            registry=self.registry,
            multiprocess_mode="livemin",
        )
        # Every process counts the same ones, so the newest view is the true one.
        self._replicas = Gauge(
            "weighbridge_replicas",
            "Processes that share the limits, as this gateway knows them.",
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        build = Gauge(
            "weighbridge_build_info",
            "Always 1; the version is a label.",
            ("version",),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        build.labels(_version()).set(1)

    def _declare_queues(self) -> None:
        """Queues are configured, so their names need no cap; each worker has its part of each."""
        self._queue_waiting, self._queue_waiting_tokens, self._queue_in_flight, self._queue_capacity = (
            Gauge(name, text, ("queue",), registry=self.registry, multiprocess_mode="livesum")
            for name, text in (
                ("weighbridge_queue_waiting", "Requests that wait for their turn."),
                ("weighbridge_queue_waiting_tokens", "Tokens, of prompts and expected answers, that wait."),
                ("weighbridge_queue_in_flight_tokens", "Tokens that were let through and are not done."),
                ("weighbridge_queue_capacity_tokens", "Tokens that may be in flight."),
            )
        )
        self._queue_wait = Histogram(
            "weighbridge_queue_wait_seconds",
            "Seconds that a request waited before it was let through.",
            ("queue", "tier"),
            buckets=QUEUE_WAIT_BUCKETS,
            registry=self.registry,
        )
        self._queue_refusals = self._counter(
            "weighbridge_queue_refusals",
            "Requests that a queue refused or gave up, by why: full, late, shed, expired.",
            ("queue", "why"),
        )

    def _declare_discovery(self) -> None:
        self._discovery_looks = self._counter(
            "weighbridge_discovery_looks",
            "Times that a pool's replicas were asked for, by how that ended: ok, empty, failed.",
            ("pool", "source", "result"),
        )
        self._discovery_conflicts = self._counter(
            "weighbridge_discovery_conflicts",
            "Times that a replica claimed a name or an address that another has.",
            ("pool", "kind"),
        )
        self._registrations = self._counter(
            "weighbridge_registrations",
            "What became of replicas that said where they are: registered, renewed, left, taken, full.",
            ("pool", "result"),
        )
        self._unwatched = self._counter(
            "weighbridge_pool_unwatched_seconds",
            "Seconds in which no process watched a pool, so that nobody knows whether its replicas were up.",
            ("pool",),
        )

    def _declare_replicas(self) -> None:
        """Every process watches the same replicas, so the newest view is the true one."""
        self._replica_state = Gauge(
            "weighbridge_replica_state",
            "1 for the state that a replica is in, 0 for the others: starting, ready, suspect, draining, down.",
            ("pool", "replica", "state"),
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        self._replica_running, self._replica_waiting, self._replica_kv_usage = (
            Gauge(name, text, ("pool", "replica"), registry=self.registry, multiprocess_mode="livemostrecent")
            for name, text in (
                ("weighbridge_replica_running", "Requests that a replica's engine runs; NaN when that is unknown."),
                ("weighbridge_replica_waiting", "Requests in a replica's own queue; NaN when that is unknown."),
                (
                    "weighbridge_replica_kv_usage",
                    "The part of a replica's KV cache that requests occupy; NaN when that is unknown.",
                ),
            )
        )
        self._replicas_shown: set[tuple[str, str]] = set()
        self._prefix_hit_rate = Gauge(
            "weighbridge_pool_prefix_hit_rate",
            "The part of prompt tokens that a pool's engines found in their caches in the last minute or so.",
            ("pool",),
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        self._scrapes = self._counter(
            "weighbridge_scrapes",
            "Readings of engines' statistics, by how they ended: ok, status, unreadable, unreachable, slow, too_large, "
            "encoded, cut.",
            ("pool", "result"),
        )
        self._adapter_loads = self._counter(
            "weighbridge_adapter_loads",
            "LoRA adapters by what became of them at a replica: loaded, unloaded, failed, busy.",
            ("pool", "result"),
        )
        self._kv_events = self._counter(
            "weighbridge_kv_events",
            "What engines told of their KV caches: batches, blocks stored and removed, caches cleared, events passed_over, "
            "garbage, gaps, replayed, dropped (knowledge that was), restart; and prompts learned, unseen, failed, known, busy.",
            ("pool", "result"),
        )
        self._beginnings = self._counter(
            "weighbridge_prompt_beginnings",
            "New beginnings of prompts by what became of them: looked at, sampled_out, and requests that were lost.",
            ("result",),
        )

    def _declare_learning(self) -> None:
        self._verdicts = self._counter(
            "weighbridge_verdicts", "Verdicts on answers that were kept to learn from.", ("source", "signal")
        )
        self._learning_dropped = Counter(
            "weighbridge_learning_dropped",
            "Answered requests that should have been kept to learn from, and were not.",
            registry=self.registry,
        )

        self._shadow = self._counter(
            "weighbridge_shadow",
            "What became of the requests that were to be answered by the reference target too, and compared.",
            ("result",),
        )

        # Every process sees the same books, so the newest view is the true one.
        self._budget_limit, self._budget_spent = (
            Gauge(name, text, ("budget_id",), registry=self.registry, multiprocess_mode="livemostrecent")
            for name, text in (
                ("weighbridge_budget_limit_usd", "What may be spent in the budget's period."),
                ("weighbridge_budget_spent_usd", "What is booked in the budget's period."),
            )
        )
        self._budget_refusals = self._counter(
            "weighbridge_budget_refusals", "Times that a hard budget had no room, by its scope.", ("scope",)
        )
        self._webhooks = self._counter(
            "weighbridge_webhooks", "What became of tries to deliver a message.", ("result",)
        )

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        """By target and tier only: teams would multiply every bucket."""
        return Histogram(name, text, ("target", "tier"), buckets=buckets, registry=self.registry)

    def finished(self, outcome: RequestOutcome) -> None:
        served = self._children(outcome)
        served.requests.inc()
        served.duration.observe(outcome.duration_s)
        if outcome.ttft_s is not None:
            served.ttft.observe(outcome.ttft_s)
        if outcome.tpot_s is not None:
            served.tpot.observe(outcome.tpot_s)
        if outcome.classify_s is not None:
            self._classifier.labels(self._source(outcome.classifier or NONE)).observe(outcome.classify_s)
        if outcome.error_code is not None or outcome.status >= _FIRST_ERROR_STATUS:
            # A rejected request carries the upstream's own code, which may be anything.
            self._refusals.labels(self._code(safe_name(outcome.error_code) or NONE), str(outcome.status)).inc()
        _count_tokens(served, outcome)
        _count_money(served, outcome)
        self._count_attempts(outcome)

    def _children(self, outcome: RequestOutcome) -> _Served:
        key = (outcome.team_id, outcome.target_id, outcome.tier, outcome.status)
        served = self._served.get(key)
        if served is None:
            if len(self._served) >= _MAX_CACHED:
                self._served.clear()
            served = self._served[key] = self._new_children(*key)
        return served

    def _new_children(self, team_id: str, target_id: str | None, tier: str, status: int) -> _Served:
        team, target, tier = self._team(team_id or NONE), self._target(target_id or NONE), self._tier(tier or NONE)
        return _Served(
            requests=self._requests.labels(team, target, tier, str(status)),
            duration=self._duration.labels(target, tier),
            ttft=self._ttft.labels(target, tier),
            tpot=self._tpot.labels(target, tier),
            input_tokens=self._tokens.labels(team, target, tier, "input"),
            cached_tokens=self._tokens.labels(team, target, tier, "cached_input"),
            output_tokens=self._tokens.labels(team, target, tier, "output"),
            cost=self._cost.labels(team, target),
            baseline=self._baseline.labels(team, target),
            unpriced=self._unpriced.labels(team, target),
        )

    def _count_attempts(self, outcome: RequestOutcome) -> None:
        previous: str | None = None
        if outcome.escalated_from is not None:
            self._escalations.labels(
                self._target(outcome.escalated_from), self._target(outcome.target_id or NONE), outcome.weakness or NONE
            ).inc()
        for attempt in outcome.attempts:
            key = (attempt.deployment_id, attempt.result)
            child = self._attempt_children.get(key)
            if child is None:
                if len(self._attempt_children) >= _MAX_CACHED:
                    self._attempt_children.clear()
                child = self._attempts.labels(self._deployment(attempt.deployment_id), attempt.result)
                self._attempt_children[key] = child
            child.inc()
            if previous is not None and previous != attempt.target_id:
                self._fallbacks.labels(self._target(previous), self._target(attempt.target_id)).inc()
            # After a whole answer, what follows was asked because it was weak.
            previous = None if attempt.result == "ok" else attempt.target_id

    def count_verdict(self, source: str, signal: str) -> None:
        """Both are names of our own, so they need no cap."""
        self._verdicts.labels(source, signal).inc()

    def count_learning_dropped(self, requests: int) -> None:
        self._learning_dropped.inc(requests)

    def count_shadow(self, result: str) -> None:
        """A name of our own, so it needs no cap."""
        self._shadow.labels(result).inc()

    def count_budget_refusal(self, scope: str) -> None:
        """One of four words of our own, so it needs no cap."""
        self._budget_refusals.labels(scope).inc()

    def set_budgets(self, standings: Sequence[Standing]) -> None:
        """The first so many of them; a budget that is gone shows nothing."""
        shown = {each.budget.budget_id: each for each in standings[:MAX_LABEL_VALUES]}
        for gone in self._budgets - shown.keys():
            self._budget_limit.remove(gone)
            self._budget_spent.remove(gone)
        self._budgets = set(shown)
        for budget_id, each in shown.items():
            self._budget_limit.labels(budget_id).set(each.budget.limit_nanousd / NANO_PER_USD)
            self._budget_spent.labels(budget_id).set(each.spent_nanousd / NANO_PER_USD)

    def count_webhook(self, result: str) -> None:
        """A name of our own, so it needs no cap."""
        self._webhooks.labels(result).inc()

    def set_in_flight(self, requests: int) -> None:
        self._in_flight.set(requests)

    def set_loop_lag(self, seconds: float) -> None:
        self._loop_lag.set(seconds)

    def count_overload_refusal(self) -> None:
        self._overload_refusals.inc()

    def set_queue(self, state: QueueState) -> None:
        self._queue_waiting.labels(state.name).set(state.waiting)
        self._queue_waiting_tokens.labels(state.name).set(state.waiting_tokens)
        self._queue_in_flight.labels(state.name).set(state.in_flight_tokens)
        self._queue_capacity.labels(state.name).set(state.capacity_tokens)

    def forget_queue(self, queue: str) -> None:
        """It was configured away; workers of one gateway would otherwise go on to show it."""
        for gauge in (self._queue_waiting, self._queue_waiting_tokens, self._queue_in_flight, self._queue_capacity):
            gauge.labels(queue).set(0)

    def observe_queue_wait(self, queue: str, tier: str, seconds: float) -> None:
        self._queue_wait.labels(queue, tier).observe(seconds)

    def count_queue_refusal(self, queue: str, why: Why) -> None:
        self._queue_refusals.labels(queue, why).inc()

    def set_breaker(self, deployment_id: str, state: BreakerState) -> None:
        self._breaker.labels(self._deployment(deployment_id)).set(_BREAKER_VALUES[state])

    def keep_deployments(self, deployment_ids: Collection[str]) -> None:
        """Forgets all others: replicas come and go for months. With several workers it forgets none, as their files don't."""
        for gone in self._deployment.seen.difference(deployment_ids):
            if self._multiprocess:
                self._breaker.labels(gone).set(_BREAKER_VALUES["closed"])
                continue
            self._deployment.forget(gone)
            self._breaker.remove(gone)
            for result in _RESULTS:
                self._attempts.remove(gone, result)
                self._attempt_children.pop((gone, result), None)

    def set_desired_replicas(self, pool: str, desired: int) -> None:
        self._desired.labels(pool).set(desired)

    def count_scale_decision(self, pool: str, reason: str) -> None:
        """Pools are configured, and the reasons are a fixed few."""
        self._scale_decisions.labels(pool, reason).inc()

    def count_choice(self, pool: str, why: str) -> None:
        """Pools are configured, and the reasons are five words of ours, so neither needs a cap."""
        self._choices.labels(pool, why).inc()

    def discovery_looked(self, pool: str, source: str, result: str) -> None:
        """Pools are configured, the rest are words of our own, so nothing here needs a cap."""
        self._discovery_looks.labels(pool, source, result).inc()

    def discovery_conflict(self, pool: str, kind: str) -> None:
        self._discovery_conflicts.labels(pool, kind).inc()

    def count_registration(self, pool: str, result: str) -> None:
        self._registrations.labels(pool, result).inc()

    def hours_unwatched(self, pool: str, seconds: float) -> None:
        self._unwatched.labels(pool).inc(seconds)

    def set_replica_state(self, pool: str, replica: str, state: ReplicaState) -> None:
        """At most so many replicas at once; with several workers so many ever, for their files forget nothing."""
        if (pool, replica) not in self._replicas_shown:
            if len(self._replicas_shown) >= MAX_LABEL_VALUES:
                return
            self._replicas_shown.add((pool, replica))
        for each in _REPLICA_STATES:
            self._replica_state.labels(pool, replica, each).set(each == state)

    def set_replica_load(self, pool: str, replica: str, stats: EngineStats | None) -> None:
        """Unknown is not idle, so it is not 0 either."""
        if (pool, replica) not in self._replicas_shown:
            return
        usage = None if stats is None else stats.kv_usage
        self._replica_running.labels(pool, replica).set(math.nan if stats is None else stats.running)
        self._replica_waiting.labels(pool, replica).set(math.nan if stats is None else stats.waiting)
        self._replica_kv_usage.labels(pool, replica).set(math.nan if usage is None else usage)

    def forget_replica(self, pool: str, replica: str) -> None:
        if (pool, replica) not in self._replicas_shown:
            return
        loads = (self._replica_running, self._replica_waiting, self._replica_kv_usage)
        if self._multiprocess:
            for each in _REPLICA_STATES:
                self._replica_state.labels(pool, replica, each).set(0)
            for gauge in loads:
                gauge.labels(pool, replica).set(math.nan)
            return
        self._replicas_shown.discard((pool, replica))
        for each in _REPLICA_STATES:
            self._replica_state.remove(pool, replica, each)
        for gauge in loads:
            gauge.remove(pool, replica)

    def set_prefix_hit_rate(self, pool: str, rate: float) -> None:
        self._prefix_hit_rate.labels(pool).set(rate)

    def count_scrape(self, pool: str, result: str) -> None:
        """Pools are configured, and the results are words of our own; so too below."""
        self._scrapes.labels(pool, result).inc()

    def count_adapter_load(self, pool: str, result: str) -> None:
        self._adapter_loads.labels(pool, result).inc()

    def count_kv(self, pool: str, result: str, count: int = 1) -> None:
        self._kv_events.labels(pool, result).inc(count)

    def count_beginnings(self, result: str, count: int) -> None:
        self._beginnings.labels(result).inc(count)

    def set_classifier(self, *, trained: bool) -> None:
        self._trained.set(trained)

    def set_journal_depth(self, entries: int) -> None:
        self._journal_depth.set(entries)

    def set_ledger_check(self, checked: Checked) -> None:
        self._ledger_differences.set(checked.differences)
        self._ledger_verified.set(checked.done_us / 1_000_000)

    def observe_redis_call(self, seconds: float) -> None:
        self._redis_call.observe(seconds)

    def count_redis_failure(self, kind: str) -> None:
        """A name of our own, so it needs no cap."""
        self._redis_failures.labels(kind).inc()

    def count_idempotency(self, event: str, times: int) -> None:
        """A name of our own, so it needs no cap."""
        self._idempotent.labels(event).inc(times)

    def count_local_admission(self) -> None:
        self._limits_local.inc()

    def count_rate_refusal(self, scope: Scope, kind: Kind) -> None:
        self._limits_refused.labels(scope, kind).inc()

    def set_limits_shared(self, *, shared: bool) -> None:
        self._limits_shared.set(shared)

    def set_redis_up(self, *, up: bool) -> None:
        self._redis_up.set(up)

    def set_replicas(self, replicas: int) -> None:
        self._replicas.set(replicas)

    def render(self) -> tuple[bytes, str]:
        """The text format and its content type. With many series it takes a while: call it in a thread."""
        return generate_latest(self._collected()), CONTENT_TYPE_PLAIN_0_0_4

    def _collected(self) -> CollectorRegistry:
        if not self._multiprocess:
            return self.registry
        collected = CollectorRegistry()
        MultiProcessCollector(collected)  # type: ignore[no-untyped-call]
        return collected


def forget_worker(pid: int, folder: str) -> None:
    """Takes a dead worker's gauges out of the sums in the workers' shared folder; its counters stay counted."""
    mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


def _count_tokens(served: _Served, outcome: RequestOutcome) -> None:
    if outcome.input_tokens:
        served.input_tokens.inc(outcome.input_tokens)
    if outcome.cached_input_tokens:
        served.cached_tokens.inc(outcome.cached_input_tokens)
    if outcome.output_tokens:
        served.output_tokens.inc(outcome.output_tokens)


def _count_money(served: _Served, outcome: RequestOutcome) -> None:
    """An unknown cost is counted apart, never as 0; without a cost beside it a baseline saves nothing."""
    if outcome.cost_nanousd is None:
        if outcome.target_id is not None:
            served.unpriced.inc()
        return
    served.cost.inc(outcome.cost_nanousd / NANO_PER_USD)
    if outcome.baseline_nanousd is not None:
        served.baseline.inc(outcome.baseline_nanousd / NANO_PER_USD)


def _version() -> str:
    try:
        return metadata.version("weighbridge")
    except metadata.PackageNotFoundError:
        return "unknown"
