"""The Prometheus registry behind /metrics, and the metrics of requests, with bounded label sets.

Every other part has its metrics in a file of its own beside it; gateway/wiring/metrics.py makes them all. Reference:
docs/observability.md; a test keeps the two in step.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from typing import Final, get_args

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from cost.prices import NANO_PER_USD
from providers.breaker import BreakerState
from proxy.dispatch.outcome import AttemptOutcome, AttemptResult, RequestOutcome
from proxy.settle.observers.logs import safe_name
from proxy.settle.observers.tallies import CounterTally, HistogramTally

MAX_LABEL_VALUES: Final = 1_000
"""The most distinct values of one label; later ones are counted as `other`."""
OTHER: Final = "other"
NONE: Final = "none"
_UNSAID: Final = "-"
"""The label in place of a version where the replica tells none."""
_OF_POOL: Final = ("pool", "version", "tier")

# The promise is a first token within 1 s for nine requests in ten, so the steps are finest around it.
TTFT_BUCKETS: Final = (
    0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0,
)  # fmt: skip
# Reading speed is 40 to 50 ms a token; a GPU that is full shows above it, a batch engine below.
TPOT_BUCKETS: Final = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
DURATION_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Scoring must stay under a millisecond.
CLASSIFIER_BUCKETS: Final = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.002, 0.005, 0.01, 0.05)

_BREAKER_VALUES: Final[Mapping[BreakerState, int]] = {"closed": 0, "half-open": 1, "open": 2, "paced": 3}
# Children are looked up by raw values, which the caps do not bound; forgetting them all is cheap and rare.
_MAX_CACHED: Final = 20_000
_RESULTS: Final[tuple[AttemptResult, ...]] = get_args(AttemptResult)
# The first status above every success.
_FIRST_ERROR_STATUS: Final = 400


class _Cap:
    """A bound of a label: the first values keep their names, later ones become `other`."""

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
        """Free a value's place for a new one."""
        self._seen.discard(value)


class _Served(msgspec.Struct, eq=False):
    """The tallies of requests of one label combination."""

    requests: CounterTally
    duration: HistogramTally
    ttft: HistogramTally
    tpot: HistogramTally
    input_tokens: CounterTally
    cached_tokens: CounterTally
    output_tokens: CounterTally
    cost: CounterTally
    baseline: CounterTally
    unpriced: CounterTally
    is_unwritten: bool = False

    def write(self) -> None:
        self.is_unwritten = False
        for name in self.__struct_fields__[:-1]:
            getattr(self, name).write()


class _PoolSpeed(msgspec.Struct, eq=False):
    """The latencies of a pool's replicas of one version, for one tier."""

    ttft: HistogramTally
    tpot: HistogramTally


class Metrics:
    """The registry and the request metrics. Never raises. Counts of requests are in the registry after `write`. With
    several workers, set PROMETHEUS_MULTIPROC_DIR to an empty directory before the first import: each worker writes
    its own files there and any of them renders the sum.
    """

    def __init__(self, *, max_label_values: int = MAX_LABEL_VALUES) -> None:
        # A creation time beside every counter would double what a scrape carries.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.forgets = "PROMETHEUS_MULTIPROC_DIR" not in os.environ
        """True when series can be removed. False with several workers, whose files keep every series."""
        self._served: dict[tuple[str, str | None, str, int], _Served] = {}
        self._attempt_tallies: dict[tuple[str, str], CounterTally] = {}
        self._pool_speeds: dict[tuple[str, str, str], _PoolSpeed] = {}
        self._classified: dict[str, HistogramTally] = {}
        self._unwritten: list[_Served] = []
        self._team, self._target, self._tier = (_Cap(max_label_values) for _ in range(3))
        self._deployment, self._code, self._source = (_Cap(max_label_values) for _ in range(3))
        self._pool, self._model_version = (_Cap(max_label_values) for _ in range(2))
        self._declare_requests()
        self._declare_money()
        self._declare_state()
        if self.forgets:
            ProcessCollector(registry=self.registry)

    def _declare_requests(self) -> None:
        self._requests = self._counter(
            "weighbridge_requests", "Requests by the HTTP status the caller saw.", ("team", "target", "tier", "status")
        )
        self._refusals = self._counter(
            "weighbridge_refusals", "Requests that ended with an error, by its code.", ("team", "code", "status")
        )
        self._duration = self._histogram(
            "weighbridge_request_duration_seconds", "From the first byte in to the last byte out.", DURATION_BUCKETS
        )
        self._ttft = self._histogram(
            "weighbridge_ttft_seconds", "Seconds from the request to its caller's first token.", TTFT_BUCKETS
        )
        self._tpot = self._histogram(
            "weighbridge_inter_token_seconds",
            "Seconds an output token after the first, mean of a request.",
            TPOT_BUCKETS,
        )
        self._pool_ttft, self._pool_tpot = (
            Histogram(name, text, _OF_POOL, buckets=buckets, registry=self.registry)
            for name, text, buckets in (
                ("weighbridge_pool_ttft_seconds", "Seconds from a replica of ours to its first token.", TTFT_BUCKETS),
                (
                    "weighbridge_pool_inter_token_seconds",
                    "Seconds a further token there, mean of a request.",
                    TPOT_BUCKETS,
                ),
            )
        )
        self._attempts = self._counter(
            "weighbridge_attempts", "Attempts at deployments, by how they ended.", ("deployment", "result")
        )
        self._fallbacks = self._counter(
            "weighbridge_fallbacks", "Times a request moved on to another target.", ("from_target", "to_target")
        )
        self._escalations = self._counter(
            "weighbridge_escalations",
            "Weak answers that a better model's answer replaced.",
            ("from_target", "to_target", "weakness"),
        )
        self._agreements = self._counter(
            "weighbridge_agreements",
            "Requests that two cheap models were asked for, by the target that answered and what became of the two answers.",
            ("target", "result"),
        )
        self._guarded = self._counter(
            "weighbridge_guard_findings",
            "What the guard found, by kind, what was done, and where: in requests (input) or in answers (output).",
            ("kind", "action", "side"),
        )
        self._continued = self._counter(
            "weighbridge_continued_streams",
            "Streams whose replica was lost and that another one went on with, by how that ended.",
            ("target", "result"),
        )
        self._classifier = Histogram(
            "weighbridge_classifier_seconds",
            "Seconds to score one prompt.",
            ("source",),
            buckets=CLASSIFIER_BUCKETS,
            registry=self.registry,
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
        self._disputed = self._counter(
            "weighbridge_disputed_usd", "What providers told beyond the possible, and was not booked.", ("target",)
        )
        self._unknown_details = self._counter(
            "weighbridge_unknown_usage_details",
            "Counts in an upstream's usage that no meter is known for.",
            ("target",),
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
        # Each worker has its own breakers: the worst view is shown.
        self._breaker = Gauge(
            "weighbridge_breaker_state",
            "0 closed, 1 half-open, 2 open, 3 set aside for its provider's pace.",
            ("deployment",),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        build = Gauge(
            "weighbridge_build_info",
            "Always 1; the version is a label.",
            ("version",),
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        build.labels(_version()).set(1)

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        """Create a histogram by target and tier; teams would multiply every bucket."""
        return Histogram(name, text, ("target", "tier"), buckets=buckets, registry=self.registry)

    def finished(self, outcome: RequestOutcome) -> None:
        served = self._served.get((outcome.team_id, outcome.target_id, outcome.tier, outcome.status))
        if served is None:
            served = self._new_children(outcome.team_id, outcome.target_id, outcome.tier, outcome.status)
        if not served.is_unwritten:
            served.is_unwritten = True
            self._unwritten.append(served)
        served.requests.amount += 1
        served.duration.observe(outcome.duration_s)
        if outcome.ttft_s is not None:
            served.ttft.observe(outcome.ttft_s)
        if outcome.tpot_s is not None:
            served.tpot.observe(outcome.tpot_s)
        if outcome.classify_s is not None:
            self._count_classified(outcome.classifier or NONE, outcome.classify_s)
        if outcome.error_code is not None or outcome.status >= _FIRST_ERROR_STATUS:
            # A rejected request carries the upstream's own code, which may be anything.
            team = self._team(outcome.team_id or NONE)
            self._refusals.labels(team, self._code(safe_name(outcome.error_code) or NONE), str(outcome.status)).inc()
        served.input_tokens.amount += outcome.input_tokens
        served.cached_tokens.amount += outcome.cached_input_tokens
        served.output_tokens.amount += outcome.output_tokens
        _count_money(served, outcome)
        for found in outcome.guard:
            self._guarded.labels(found.label, found.action, found.side).inc(found.count)
        self._count_attempts(outcome)

    def write(self) -> None:
        """Write the counts since the last call to the registry; to be called about once a second."""
        unwritten, self._unwritten = self._unwritten, []
        for served in unwritten:
            served.write()
        for observed in self._classified.values():
            observed.write()
        for speed in self._pool_speeds.values():
            speed.ttft.write()
            speed.tpot.write()
        for counted in self._attempt_tallies.values():
            counted.write()

    def _count_classified(self, source: str, seconds: float) -> None:
        tally = self._classified.get(source)
        if tally is None:
            name = self._source(source)
            tally = self._classified.setdefault(name, HistogramTally(self._classifier.labels(name), CLASSIFIER_BUCKETS))
        tally.observe(seconds)

    def _new_children(self, team_id: str, target_id: str | None, tier: str, status: int) -> _Served:
        if len(self._served) >= _MAX_CACHED:
            self._served.clear()
        key = (team_id, target_id, tier, status)
        team, target, tier = self._team(team_id or NONE), self._target(target_id or NONE), self._tier(tier or NONE)
        served = self._served[key] = _Served(
            requests=CounterTally(self._requests.labels(team, target, tier, str(status))),
            duration=HistogramTally(self._duration.labels(target, tier), DURATION_BUCKETS),
            ttft=HistogramTally(self._ttft.labels(target, tier), TTFT_BUCKETS),
            tpot=HistogramTally(self._tpot.labels(target, tier), TPOT_BUCKETS),
            input_tokens=CounterTally(self._tokens.labels(team, target, tier, "input")),
            cached_tokens=CounterTally(self._tokens.labels(team, target, tier, "cached_input")),
            output_tokens=CounterTally(self._tokens.labels(team, target, tier, "output")),
            cost=CounterTally(self._cost.labels(team, target)),
            baseline=CounterTally(self._baseline.labels(team, target)),
            unpriced=CounterTally(self._unpriced.labels(team, target)),
        )
        return served

    def _count_attempts(self, outcome: RequestOutcome) -> None:
        previous: str | None = None
        if outcome.escalated_from is not None:
            self._escalations.labels(
                self._target(outcome.escalated_from), self._target(outcome.target_id or NONE), outcome.weakness or NONE
            ).inc()
        if outcome.agreement is not None:
            self._agreements.labels(self._target(outcome.target_id or NONE), outcome.agreement).inc()
        for attempt in outcome.attempts:
            key = (attempt.deployment_id, attempt.result)
            tally = self._attempt_tallies.get(key)
            if tally is None:
                if len(self._attempt_tallies) >= _MAX_CACHED:
                    self.write()
                    self._attempt_tallies.clear()
                child = self._attempts.labels(self._deployment(attempt.deployment_id), attempt.result)
                tally = self._attempt_tallies[key] = CounterTally(child)
            tally.amount += 1
            if attempt.pool:
                self._observe_speed(attempt, outcome.tier)
            if attempt.disputed_nanousd or attempt.unknown:
                self._count_oddities(attempt)
            if attempt.continues:
                self._continued.labels(self._target(attempt.target_id), attempt.result).inc()
            if previous is not None and previous != attempt.target_id:
                self._fallbacks.labels(self._target(previous), self._target(attempt.target_id)).inc()
            # After a whole answer, what follows was asked because it was weak; beside one that was late, because of that.
            previous = None if attempt.result in {"ok", "hedge_lost"} else attempt.target_id

    def _count_oddities(self, attempt: AttemptOutcome) -> None:
        if attempt.disputed_nanousd:
            self._disputed.labels(self._target(attempt.target_id)).inc(attempt.disputed_nanousd / NANO_PER_USD)
        if attempt.unknown:
            self._unknown_details.labels(self._target(attempt.target_id)).inc(len(attempt.unknown))

    def _observe_speed(self, attempt: AttemptOutcome, tier: str) -> None:
        if attempt.ttft_s is None and attempt.tpot_s is None:
            return
        key = attempt.pool, attempt.version, tier
        speed = self._pool_speeds.get(key)
        if speed is None:
            labels = self._pool(attempt.pool), self._model_version(attempt.version or _UNSAID), self._tier(tier)
            speed = self._pool_speeds.setdefault(
                # Versions beyond the cap share one series, and its tally.
                labels if OTHER in labels else key,
                _PoolSpeed(
                    HistogramTally(self._pool_ttft.labels(*labels), TTFT_BUCKETS),
                    HistogramTally(self._pool_tpot.labels(*labels), TPOT_BUCKETS),
                ),
            )
        if attempt.ttft_s is not None:
            speed.ttft.observe(attempt.ttft_s)
        if attempt.tpot_s is not None:
            speed.tpot.observe(attempt.tpot_s)

    def set_in_flight(self, requests: int) -> None:
        self._in_flight.set(requests)

    def set_breaker(self, deployment_id: str, state: BreakerState) -> None:
        self._breaker.labels(self._deployment(deployment_id)).set(_BREAKER_VALUES[state])

    def keep_deployments(self, deployment_ids: Collection[str]) -> None:
        """Remove the series of all other deployments, as replicas come and go. With several workers this only resets
        their breaker state.
        """
        for gone in self._deployment.seen.difference(deployment_ids):
            if not self.forgets:
                self._breaker.labels(gone).set(_BREAKER_VALUES["closed"])
                continue
            self._deployment.forget(gone)
            self._breaker.remove(gone)
            for result in _RESULTS:
                self._attempts.remove(gone, result)
                self._attempt_tallies.pop((gone, result), None)

    def render(self) -> tuple[bytes, str]:
        """Render the written series in the text format, and return it with its content type. Slow with many series:
        call it in a thread.
        """
        return generate_latest(self._collected()), CONTENT_TYPE_PLAIN_0_0_4

    def _collected(self) -> CollectorRegistry:
        if self.forgets:
            return self.registry
        collected = CollectorRegistry()
        MultiProcessCollector(collected)  # type: ignore[no-untyped-call]
        return collected


def forget_worker(pid: int, folder: str) -> None:
    """Remove a dead worker's gauges from the sums in the shared folder; its counters stay counted."""
    mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


def _count_money(served: _Served, outcome: RequestOutcome) -> None:
    """Count cost and baseline. An unknown cost is counted as unpriced, not as 0, and then its baseline is left out
    too.
    """
    if outcome.cost_nanousd is None:
        if outcome.target_id is not None:
            served.unpriced.amount += 1
        return
    served.cost.amount += outcome.cost_nanousd / NANO_PER_USD
    if outcome.baseline_nanousd is not None:
        served.baseline.amount += outcome.baseline_nanousd / NANO_PER_USD


def _version() -> str:
    try:
        return metadata.version("weighbridge")
    except metadata.PackageNotFoundError:
        return "unknown"
