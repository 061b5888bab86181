"""Thirty days of a company's traffic, written by the gateway's own code: `python -m gateway.demo.history OUT.sqlite`.

Only the requests are made up: what was asked, when, how long an upstream took, and when one failed. The trained
classifier weighs each prompt, `plan` chooses, an `Attempt` reserves and settles, and the ledger's own store writes its
entries with their roll-ups. Prices, budgets, pool hours, true-ups, corrections, people and the audit log go through
their own stores too. The same seed and moment give the same history.
"""

import argparse
import asyncio
import bisect
import json
import logging
import random
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from accounts.keys import Pepper
from accounts.pepper_file import read_or_make_pepper
from classifier.learning.store import ClassifiedRequest, LearningStore, Verdict
from classifier.prediction import Classifier, Prediction, Prompt
from cost.fleet.cost_adjustment import TrueUpRounds, TrueUpStore
from cost.ledger.entries import Arm
from cost.ledger.ledger import MemoryLedger
from cost.ledger.store import LedgerStore
from cost.price_book.book import price_book
from cost.price_book.store import PriceStore
from cost.savings.holdout import arm_of
from cost.times import DAY_US, HOUR_US, day_of, moment, wall_us
from gateway.configuration.environment import read_environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.settings import load
from gateway.database import make_engine, migrate
from gateway.demo import company
from gateway.demo.company import SampleTeam, Work
from gateway.demo.founding import Founding, first_callers
from gateway.demo.sample_config import REPLICAS, Addresses, write_sample_config
from gateway.demo.scaled_pool import scaled
from gateway.demo.statement import reconcile_with_statement
from gateway.wiring.catalog import catalog_of, classifier_of
from gateway.wiring.policy import build_comparators, build_policy
from providers.breaker import Breakers
from providers.catalog import configured_prices, repriced, with_deployments
from providers.errors import FirstTokenTimeout, StreamCut, UpstreamError, UpstreamRateLimited, UpstreamUnavailable
from providers.target import Deployment
from providers.wire import ChatRequest, Event, WireUsage
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.outcome import CALLER_GONE, Ending
from proxy.parse.chat_request import AUTO
from proxy.plan.quality_tolerance import Tolerances
from proxy.plan.route_plan import Candidate, Facts, RoutePlan, held_out, plan
from proxy.plan.routed_request import RoutedRequest
from proxy.plan.session_affinity import CACHE_MIN_TOKENS, Sticky
from proxy.settle.observers.learning import kept_text
from proxy.shared.deadline import NO_DEADLINE
from selfhosted.registry.store import RegistryStore
from selfhosted.scale.target import Targets

DAYS: Final = 30
REQUESTS: Final = 60_000
SEED: Final = 20
_AT_ONCE: Final = 2_000
_US: Final = 1_000_000

# How busy each hour of a working day is (UTC), and each day of a week from Monday on.
_HOURS: Final = (2, 2, 2, 3, 4, 9, 22, 48, 78, 92, 95, 88, 70, 86, 92, 84, 66, 42, 24, 15, 10, 7, 4, 3)
_WEEK: Final = (1.0, 1.08, 1.05, 1.02, 0.86, 0.22, 0.16)
_NIGHT_HOURS: Final = (60, 70, 72, 66, 50, 30, 24, 34, 50, 58, 60, 56, 48, 54, 58, 52, 44, 36, 30, 30, 34, 40, 48, 54)
_NIGHT_WEEK: Final = (1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.78)


class _Pace(msgspec.Struct, frozen=True):
    """A target's speed: median seconds to the first token and per further token."""

    first_s: float
    each_s: float


_PACES: Final = {
    company.OWN: _Pace(0.34, 0.021),
    company.MINI: _Pace(0.48, 0.009),
    company.HAIKU: _Pace(0.62, 0.011),
    company.SONNET: _Pace(1.05, 0.017),
    company.REFERENCE: _Pace(0.78, 0.013),
    company.HOSTED: _Pace(0.55, 0.012),
}


class _Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A period in which a target fails more often."""

    target_id: str
    weekday: int
    hour: float
    """When it begins, in hours of that day (UTC)."""
    hours: float
    share: float
    """The share of attempts that fail meanwhile."""
    slower: float = 1.0


_INCIDENTS: Final = (
    _Incident(target_id=company.HAIKU, weekday=3, hour=9 + 40 / 60, hours=2.2, share=0.45, slower=3.0),
)
_JUMP_WEEKDAY: Final = 1
_JUMP_HOUR: Final = 14
_LEAST_AGO_US: Final = 20 * HOUR_US
"""How long ago the incident and the jump began at least, so that there is an after."""
_USUAL_FAILURES: Final = 0.004
_HANG_UPS: Final = 0.006


_WORDINESS: Final = {company.SONNET: 1.25, company.OWN: 0.92, company.MINI: 0.97}
_MOST_INPUT: Final = 30_000
_WEAK_SHARE: Final = 0.03
_FEEDBACK_SHARE: Final = 0.02
_LIKED_SHARE: Final = 0.985
_SPILLS_FROM: Final = 86
_SPILL_SHARE: Final = 0.05
_LATEST_US: Final = 90 * _US
"""The margin before the end in microseconds, so that everything that began has ended."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The result of writing the history, for signing in and calling."""

    requests: int
    entries: int
    start_us: int
    end_us: int
    keys: dict[str, str]
    """The first key of each team, in plain text."""
    links: dict[str, str]
    """One-time tokens for setting a password, by e-mail address."""


class _DrawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, before any routing."""

    at_us: int
    team: SampleTeam
    work: Work
    prompt: Prompt


class _Clock:
    """The simulated clock, in seconds since 1970."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> float:
        return self.now_us / _US

    def us(self) -> int:
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        self.now_us += round(seconds * _US)


def times_of(team: SampleTeam, count: int, start_us: int, end_us: int, rng: random.Random) -> list[int]:
    """Draw `count` times in microseconds, sorted, denser when the team works."""
    hours, week = (_NIGHT_HOURS, _NIGHT_WEEK) if team.night else (_HOURS, _WEEK)
    first_hour = start_us - start_us % HOUR_US
    places = range(first_hour, end_us, HOUR_US)
    weights = []
    for hour_us in places:
        grown = 1 + (team.growth - 1) * (hour_us - start_us) / max(1, end_us - start_us)
        weights.append(hours[hour_us // HOUR_US % 24] * week[moment(hour_us).weekday()] * grown)
    bounds = list(accumulate(weights))
    found: list[int] = []
    while len(found) < count:
        hour_us = places[bisect.bisect_left(bounds, rng.random() * bounds[-1])]
        at_us = hour_us + rng.randrange(HOUR_US)
        if start_us <= at_us < end_us:
            found.append(at_us)
    return sorted(found)


class _HistoryWriter:
    """A simulation of requests, one by one, as the pipeline would have served them."""

    def __init__(self, config: GatewayConfig, callers: Mapping[str, Sequence[Caller]], seed: int) -> None:
        self.clock = _Clock()
        self.books = MemoryLedger("5a3b1e0000000000")
        self.weighings: list[ClassifiedRequest] = []
        self.verdicts: list[Verdict] = []
        self._rng = random.Random(seed)  # noqa: S311 - it makes up a history, it guards nothing
        self._config = config
        self._callers = callers
        self._policy = build_policy(config.policy, config.cost)
        self._classifier: Classifier = classifier_of(config)
        self._predictions: dict[Prompt, Prediction] = {}
        self._pools = {target: pool.name for pool in config.cost.pools for target in pool.targets}
        self._breakers = Breakers(config.providers.breaker, self.clock)
        self.book = configured_prices(config.providers)
        self._next_price_us: int | None = 0
        bare = catalog_of(config)
        self._catalog = with_deployments(bare, _replicas(config))
        self._breakers.adopt(self._catalog)
        self._tolerances = Tolerances(catalog=self._catalog, policy=self._policy, classifier=self._classifier)
        self._incidents: tuple[_Span, ...] = ()
        self.revoked_us: Mapping[str, int] = {}

    def expect(self, spans: Sequence["_Span"]) -> None:
        """Set the incidents to simulate."""
        self._incidents = tuple(spans)

    async def serve(self, asked: _DrawnRequest) -> None:
        """Classify, plan, attempt and book one request."""
        self.clock.now_us = asked.at_us
        self._follow_prices()
        rng, team = self._rng, asked.team
        caller = self._caller(team)
        named = rng.random() < team.named_share
        facts = self._facts(asked, caller, named=named)
        prediction = None if named else self._classify(asked.prompt)
        sticky = self._sticky(team, facts)
        request_id = f"req_{rng.getrandbits(128):032x}"
        route, arm = self._route(request_id, facts, prediction, sticky)
        routed = RoutedRequest(
            request_id=request_id,
            caller=caller,
            request=_request(facts, asked, streams=rng.random() < team.stream_share, tag=rng.choice(team.tags)),
            facts=facts,
            plan=route,
            prediction=prediction,
            comparators=build_comparators(self._catalog, self._config.cost.reference_target, self._config.cost.hosted),
            timeouts=self._config.providers.timeouts,
            retry=self._config.providers.retry,
            upstream_headers={},
            alias=facts.alias,
            pools=self._pools,
            arm=arm,
            deadline=msgspec.structs.replace(NO_DEADLINE, arrived_at=self.clock()),
        )
        served = await self._try_candidates(routed, asked, sticky)
        if served is not None and prediction is not None and caller.settings.learning != "off":
            self._record_classification(routed, served, prediction, asked.prompt)

    def _caller(self, team: SampleTeam) -> Caller:
        """Draw one of the team's callers; a revoked key falls back to the first."""
        callers = [each for each in self._callers[team.team_id] if not team.only_key or each.key_name == team.only_key]
        caller = self._rng.choice(callers)
        return caller if self.clock.now_us < self.revoked_us.get(caller.key_id, self.clock.now_us + 1) else callers[0]

    def _follow_prices(self) -> None:
        now_us = self.clock.now_us
        if self._next_price_us is not None and now_us >= self._next_price_us:
            self._catalog = repriced(self._catalog, self.book, now_us)
            self._next_price_us = self.book.next_change_us(now_us)

    def _classify(self, prompt: Prompt) -> Prediction:
        found = self._predictions.get(prompt)
        if found is None:
            found = self._predictions[prompt] = self._classifier.classify(prompt)
        return found

    def _facts(self, asked: _DrawnRequest, caller: Caller, *, named: bool) -> Facts:
        tokens = max(40, round(asked.work.input_tokens * self._rng.lognormvariate(0, 0.45)))
        batch = self._rng.random() < asked.team.batch_share
        return Facts(
            alias=asked.team.names if named else AUTO,
            tier="batch" if batch else "interactive",
            needs=frozenset({"json"}) if asked.work.json_mode else frozenset(),
            input_tokens=min(tokens, _MOST_INPUT),
            max_output_tokens=None,
            allowed_models=caller.allowed_models,
            most_input_tokens=tokens * 2,
            willing_nanousd=self._tolerances.of(caller.settings.quality_floor, caller.allowed_models).by_average,
        )

    def _sticky(self, team: SampleTeam, facts: Facts) -> Sticky | None:
        """Draw whether the request continues a conversation that its last target still has cached."""
        if self._rng.random() >= team.cached_share or facts.input_tokens < CACHE_MIN_TOKENS:
            return None
        return Sticky(company.OWN, round(facts.input_tokens * self._rng.uniform(0.4, 0.92)))

    def _route(
        self, request_id: str, facts: Facts, prediction: Prediction | None, sticky: Sticky | None
    ) -> tuple[RoutePlan, Arm]:
        fleet = {name: self._ready(name) for name in self._catalog.targets}
        route = plan(facts, prediction, self._policy, self._catalog, fleet, sticky)
        if prediction is None:
            return route, ""
        arm = arm_of(request_id, self._config.cost.holdout_share)
        if arm == "holdout":
            held = held_out(route, facts, prediction, self._policy, self._catalog, fleet)
            return (route, "") if held is None else (held, arm)
        return route, arm

    def _ready(self, target_id: str) -> tuple[Deployment, ...]:
        """Return the deployments that take work now; of our own target, the replicas that are up."""
        known = self._breakers.available(self._catalog.targets[target_id])
        return known[: replicas_up(self.clock.now_us)] if target_id == company.OWN else known

    async def _try_candidates(
        self, routed: RoutedRequest, asked: _DrawnRequest, sticky: Sticky | None
    ) -> Attempt | None:
        """Try the candidates in order. Return the attempt whose answer the caller got, or None."""
        number = 0
        for candidate in self._with_spill_over(routed):
            known = self._ready(candidate.target.target_id)
            if not known:
                continue
            deployment = self._rng.choice(known)
            permit = self._breakers.try_acquire(deployment.deployment_id)
            if permit is None:
                continue
            number += 1
            attempt = Attempt(routed, number, candidate, deployment, permit, self.books, self.clock, self.clock.us)
            await attempt.reserve()
            attempt.sent = True
            if self._simulate_answer(attempt, asked, sticky):
                better = self._better_candidate(attempt, routed)
                if better is None:
                    return attempt if attempt.settled is not None and attempt.settled.outcome.result == "ok" else None
                routed = msgspec.structs.replace(
                    routed, plan=msgspec.structs.replace(routed.plan, candidates=(better,))
                )
                return await self._escalate(attempt, routed, better, asked)
        return None

    def _with_spill_over(self, routed: RoutedRequest) -> Sequence[Candidate]:
        """Return the candidates; in the busiest hours some requests for our own target spill over to a paid one."""
        candidates = routed.plan.candidates
        busy = _HOURS[self.clock.now_us // HOUR_US % 24] >= _SPILLS_FROM and routed.caller.settings.spill_over
        first_own = candidates[0].target.target_id == company.OWN and routed.facts.tier == "interactive"
        if not (busy and first_own and len(candidates) > 1) or self._rng.random() >= _SPILL_SHARE:
            return candidates
        return (msgspec.structs.replace(candidates[1], reason="spill-over"), candidates[0], *candidates[2:])

    def _simulate_answer(self, attempt: Attempt, asked: _DrawnRequest, sticky: Sticky | None) -> bool:
        """Simulate an upstream's answer or failure. Settle it unless the answer is to be found weak; return False on
        failure.
        """
        rng, target_id = self._rng, attempt.deployment.target_id
        span = self._bad_hour(target_id)
        pace = _PACES[target_id]
        slower = (1.0 if span is None else span.incident.slower) * rng.lognormvariate(0, 0.35)
        first_s = pace.first_s * slower * (0.5 + attempt.routed.facts.input_tokens / 8_000)
        if rng.random() < (_USUAL_FAILURES if span is None else span.incident.share):
            self._fail(attempt, first_s)
            return False
        usage = self._usage(attempt, asked, sticky)
        self.clock.pass_s(first_s)
        attempt.observe([Event(payload=b"{}", token=True, choices=1, text_chars=4, usage=None, finished=False)])
        attempt.healthy()
        self.clock.pass_s(usage["completion_tokens"] * pace.each_s * slower)
        ending: Ending = "caller_gone" if attempt.routed.request.stream and rng.random() < _HANG_UPS else "ok"
        if ending == "caller_gone":
            attempt.close(ending, status=CALLER_GONE)
            return True
        attempt.observe([Event(payload=b"{}", token=False, choices=1, text_chars=0, usage=usage, finished=True)])
        if not self._is_weak(attempt):
            attempt.close("ok", status=200)
        return True

    def _usage(self, attempt: Attempt, asked: _DrawnRequest, sticky: Sticky | None) -> WireUsage:
        tokens, target_id = attempt.routed.facts.input_tokens, attempt.deployment.target_id
        counted = round(tokens * self._rng.uniform(0.96, 1.05))
        cached = 0
        if sticky is not None and target_id in {company.OWN, company.REFERENCE, company.SONNET}:
            cached = min(counted, sticky.cached_tokens)
        wordy = _WORDINESS.get(target_id, 1.0)
        output = max(1, round(asked.work.output_tokens * wordy * self._rng.lognormvariate(0, 0.4)))
        return WireUsage(
            prompt_tokens=counted,
            completion_tokens=output,
            total_tokens=counted + output,
            prompt_tokens_details={"cached_tokens": cached},
        )

    def _fail(self, attempt: Attempt, first_s: float) -> None:
        where = attempt.deployment.deployment_id
        kinds: tuple[tuple[UpstreamError, int, float], ...] = (
            (UpstreamUnavailable("the upstream answered 503", deployment_id=where, status=503), 502, first_s),
            (FirstTokenTimeout("no first token in time", deployment_id=where), 504, 15.0),
            (UpstreamRateLimited("the upstream answered 429", deployment_id=where, status=429), 429, first_s),
            (StreamCut("the stream was cut", deployment_id=where), 502, first_s),
        )
        failure, status, after_s = self._rng.choices(kinds, (5, 2, 2, 1))[0]
        self.clock.pass_s(after_s)
        attempt.close("failed", failure, status=status)

    def _is_weak(self, attempt: Attempt) -> bool:
        routed = attempt.routed
        wants = routed.caller.settings.escalation
        judged = wants == "all" or (wants == "whole" and not routed.request.stream)
        cheap = attempt.deployment.target_id in {company.OWN, company.HAIKU}
        return judged and cheap and routed.prediction is not None and self._rng.random() < _WEAK_SHARE

    def _better_candidate(self, attempt: Attempt, routed: RoutedRequest) -> Candidate | None:
        if attempt.settled is not None:
            return None
        others = [each for each in routed.plan.candidates if each.target.target_id != attempt.deployment.target_id]
        if not others:
            attempt.close("ok", status=200)
            return None
        best = max(others, key=lambda each: each.strength)
        return msgspec.structs.replace(best, reason="escalated")

    async def _escalate(
        self, weak: Attempt, routed: RoutedRequest, better: Candidate, asked: _DrawnRequest
    ) -> Attempt | None:
        known = self._ready(better.target.target_id)
        deployment = self._rng.choice(known) if known else None
        permit = None if deployment is None else self._breakers.try_acquire(deployment.deployment_id)
        if permit is None or deployment is None:
            weak.close("ok", status=200)
            return weak
        weak.close("ok", status=200, unused="escalated")
        again = Attempt(routed, weak.number + 1, better, deployment, permit, self.books, self.clock, self.clock.us)
        await again.reserve()
        again.sent = True
        if not self._simulate_answer(again, asked, None):
            return None
        # It was held back to be judged like the one before.
        again.released_at = self.clock()
        again.close("ok", status=200)
        return again

    def _bad_hour(self, target_id: str) -> "_Span | None":
        now_us = self.clock.now_us
        return next(
            (
                each
                for each in self._incidents
                if each.incident.target_id == target_id and each.start_us <= now_us < each.end_us
            ),
            None,
        )

    def _record_classification(
        self, routed: RoutedRequest, served: Attempt, prediction: Prediction, prompt: Prompt
    ) -> None:
        settled = served.settled
        if settled is None:
            return
        self.weighings.append(
            ClassifiedRequest(
                request_id=routed.request_id,
                at_us=self.clock.now_us,
                organisation_id=routed.caller.organisation_id,
                team_id=routed.caller.team_id,
                target_id=served.deployment.target_id,
                artifact=prediction.artifact,
                vector=prediction.vector,
                complexity=prediction.complexity,
                group_id=prediction.group,
                input_tokens=settled.usage.input_tokens,
                output_tokens=settled.usage.output_tokens,
                cost_nanousd=settled.cost_nanousd,
                prompt=kept_text(prompt) if routed.caller.settings.learning == "prompts" else None,
            )
        )
        if self._rng.random() < _FEEDBACK_SHARE:
            self.verdicts.append(self._verdict(self.weighings[-1]))

    def _verdict(self, about: ClassifiedRequest) -> Verdict:
        """Draw a person's verdict on an answer."""
        good = self._rng.random() < _LIKED_SHARE
        return Verdict(
            request_id=about.request_id,
            at_us=about.at_us + 40 * _US,
            organisation_id=about.organisation_id,
            team_id=about.team_id,
            target_id=about.target_id,
            source="feedback",
            signal="rating",
            adequate=1.0 if good else 0.0,
        )


class _Span(msgspec.Struct, frozen=True):
    """An incident with its times in microseconds."""

    incident: _Incident
    start_us: int
    end_us: int


def _request(facts: Facts, asked: _DrawnRequest, *, streams: bool, tag: str) -> ChatRequest:
    return ChatRequest(
        fields={},
        model=facts.alias,
        messages=[],
        stream=streams,
        include_usage=True,
        json_mode=asked.work.json_mode,
        tier=facts.tier,
        tag=tag,
    )


def _replicas(config: GatewayConfig) -> dict[str, tuple[Deployment, ...]]:
    """Return the pool's replicas, named as the fleet names them."""
    return {
        target: tuple(
            Deployment(
                deployment_id=f"{target}/{each.name}",
                target_id=target,
                kind="vllm",
                upstream_model=pool.upstream_model or target,
                base_url=f"{each.url}/v1",
            )
            for each in pool.replicas
        )
        for pool in config.selfhosted.pools
        for target in pool.targets
    }


def _draw_requests(
    teams: Sequence[SampleTeam], requests: int, start_us: int, end_us: int, rng: random.Random
) -> list[_DrawnRequest]:
    """Draw all requests of all teams, in order of time."""
    shares = sum(team.share for team in teams)
    jump_us = last_weekday(_JUMP_WEEKDAY, _JUMP_HOUR, end_us)
    sources = [(team, start_us) for team in teams] + [(company.JUMP, jump_us)]
    found = []
    for team, from_us in sources:
        count = requests * team.share * (end_us - from_us) // (shares * (end_us - start_us))
        for at_us in times_of(team, max(1, count), from_us, end_us, rng):
            work = rng.choice(team.work)
            found.append(_DrawnRequest(at_us=at_us, team=team, work=work, prompt=rng.choice(work.prompts())))
    return sorted(found, key=lambda each: each.at_us)


async def write_history(
    engine: AsyncEngine,
    config: GatewayConfig,
    pepper: Pepper,
    *,
    end_us: int,
    password: str,
    requests: int = REQUESTS,
    seed: int = SEED,
    progress: Callable[[str], None] = lambda _: None,
) -> History:
    """Write the whole history into a database that has the newest schema and is empty."""
    start_us = end_us - DAYS * DAY_US
    start_us -= start_us % DAY_US
    founding = Founding(engine, pepper, start_us=start_us - 3 * DAY_US + 8 * HOUR_US, seed=seed)
    founded = await founding.found()
    teams = (*company.TEAMS, *company.NEIGHBOURS)
    prices = PriceStore(engine, lambda: start_us)
    for known in configured_prices(config.providers).entries():
        await prices.remember(known.target_id, known.price, known.source, known.effective_us)
    await founding.go_on(founded, end_us)
    teller = _HistoryWriter(config, first_callers(founded, teams), seed)
    teller.book = price_book([*configured_prices(config.providers).entries(), *await prices.overrides()])
    teller.revoked_us = founded.revoked_us
    rng = random.Random(seed)  # noqa: S311 - it makes up a history, it guards nothing
    asked = _draw_requests(teams, requests, start_us, end_us - _LATEST_US, rng)
    teller.expect([_span(each, end_us) for each in _INCIDENTS])
    entries = 0
    ledger, learning = LedgerStore(engine), LearningStore(engine)
    for begin in range(0, len(asked), _AT_ONCE):
        for each in asked[begin : begin + _AT_ONCE]:
            await teller.serve(each)
        entries += await ledger.insert(teller.books.entries)
        await learning.add(teller.weighings, teller.verdicts)
        teller.books.entries.clear()
        teller.weighings.clear()
        teller.verdicts.clear()
        progress(f"{min(begin + _AT_ONCE, len(asked)):,} of {len(asked):,} requests, {entries:,} ledger entries")
    await _bill(engine, config, ledger, start_us, end_us)
    await _scale(engine, config, end_us, seed)
    posting = await reconcile_with_statement(engine, day_of(start_us), day_of(start_us + 13 * DAY_US), end_us)
    await founding.posted(founded, posting)
    await founding.raise_budget(founded)
    links = await founding.let_in(founded, password, lambda: end_us)
    return History(
        requests=len(asked), entries=entries, start_us=start_us, end_us=end_us, keys=founded.keys, links=links
    )


def last_weekday(weekday: int, hour: float, end_us: int) -> int:
    """Return the last time that it was this hour of this weekday, Monday being 0, and a while ago."""
    latest_us = end_us - _LEAST_AGO_US
    found_us = latest_us - latest_us % DAY_US + round(hour * HOUR_US)
    while found_us > latest_us or moment(found_us).weekday() != weekday:
        found_us -= DAY_US
    return found_us


def _span(incident: _Incident, end_us: int) -> _Span:
    start_us = last_weekday(incident.weekday, incident.hour, end_us)
    return _Span(incident, start_us, start_us + round(incident.hours * HOUR_US))


async def _bill(engine: AsyncEngine, config: GatewayConfig, ledger: LedgerStore, start_us: int, end_us: int) -> None:
    """Record the hours that replicas were up, as the fleet does, and each night's true-up."""
    books = TrueUpStore(engine, ledger)
    for pool in config.cost.pools:
        for hour_us in range(start_us, end_us - end_us % HOUR_US, HOUR_US):
            for replica in REPLICAS[: replicas_up(hour_us)]:
                await books.hours.record(pool.name, hour_us, replica, HOUR_US)
    night = _Clock()
    rounds = TrueUpRounds(books, lambda: config.cost.pools, night.us)
    for day_us in range(start_us, end_us - end_us % DAY_US, DAY_US):
        night.now_us = min(day_us + DAY_US + 2 * HOUR_US, end_us)
        for pool in config.cost.pools:
            await rounds.true_up(pool.name, day_of(day_us))


async def _scale(engine: AsyncEngine, config: GatewayConfig, end_us: int, seed: int) -> None:
    """Record how the autoscaler decided in the last day, as its loop does under the lease."""
    leases, targets = RegistryStore(engine), Targets(engine)
    costs = {pool.name: pool for pool in config.cost.pools}
    for pool in config.selfhosted.pools:
        if pool.scale is None:
            continue
        carries = float(1_000_000 / costs[pool.name].seconds_per_million.input)
        found = scaled(pool.scale, carries, own_part, end_us, seed)
        await leases.hold(pool.name, _HOLDER, _LEASE_US)
        await targets.store(pool.name, _HOLDER, found.decision, found.state)
        await leases.release(_HOLDER, [pool.name])


def own_part(at_us: int) -> float:
    """Return what comes to our own replicas, as a part of what one carries: none while none is up."""
    if not replicas_up(at_us):
        return 0.0
    place = at_us / HOUR_US - 0.5
    hour, part = int(place), place - int(place)
    return (_busy(hour * HOUR_US) * (1 - part) + _busy((hour + 1) * HOUR_US) * part) / _FILLS_ONE


def replicas_up(at_us: int) -> int:
    """Return the number of replicas up: none at night and on weekends, when buying is cheaper; up to two on working days."""
    busy = _busy(at_us)
    return sum(busy >= least for least in _REPLICAS_FROM)


def _busy(at_us: int) -> float:
    """Return how busy the hour of a time is."""
    return _HOURS[at_us // HOUR_US % 24] * _WEEK[moment(at_us).weekday()]


_REPLICAS_FROM: Final = (58, 98)
_FILLS_ONE: Final = 85
"""How busy an hour is whose work one replica just carries."""
_HOLDER: Final = "sample"
_LEASE_US: Final = 60 * _US


async def _write(database: Path, requests: int, seed: int, password: str) -> History:
    end_us = wall_us()
    first = day_of(end_us - DAYS * DAY_US)
    path = write_sample_config(database.parent, Addresses(), first)
    config = load(path, read_environment(), secrets_from=None)
    engine = make_engine(f"sqlite:///{database}")
    try:
        await migrate(engine)
        return await write_history(
            engine,
            config,
            read_or_make_pepper(database.parent / "pepper"),
            end_us=end_us,
            password=password,
            requests=requests,
            seed=seed,
            progress=lambda line: print(line, file=sys.stderr),  # noqa: T201 - a command's progress
        )
    finally:
        await engine.dispose()


def main() -> None:
    logging.getLogger("weighbridge.audit").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(prog="python -m gateway.demo.history", description=__doc__)
    parser.add_argument(
        "database", type=Path, help="a SQLite file to make; sample.yaml, the pepper and keys.json go beside it"
    )
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--password", help="what everybody signs in with; made up when left out")
    given = parser.parse_args()
    if given.database.exists():
        sys.exit(f"{given.database} is there already; name another file, or remove it first")
    given.database.parent.mkdir(parents=True, exist_ok=True)
    password = given.password or secrets.token_urlsafe(12)
    told = asyncio.run(_write(given.database.resolve(), given.requests, given.seed, password))
    keys_file = given.database.parent / "keys.json"
    keys_file.touch(mode=0o600)
    keys_file.write_text(json.dumps(told.keys))
    people = "\n".join(f"  {each.email:<28} {each.role or 'of teams'}" for each in company.PEOPLE)
    sys.stdout.write(
        f"{told.requests:,} requests, {told.entries:,} ledger entries in {given.database}\n"
        f"everybody signs in with the password: {password}\n{people}\n"
    )


if __name__ == "__main__":
    main()
