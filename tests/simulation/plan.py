"""What a seed does: the configuration of its gateway, its callers, and what goes wrong when."""

from collections.abc import Mapping
from random import Random
from typing import Any, Final, Literal

import msgspec

from proxy.batch.batch import Window
from tests.simulation.batch_api import BatchMood, LineSlip, Slip
from tests.simulation.callers import Manner
from tests.simulation.database import Temper
from tests.simulation.machine import Machine
from tests.simulation.network import Weather
from tests.simulation.upstream import Behaviour, Mood

Trouble = Literal[
    "kill_worker",
    "kill_books",
    "kill_lines",
    "lose_power",
    "restart_worker",
    "clock_back",
    "clock_forward",
    "clock_month",
    "clock_summer",
    "clock_day",
    "freeze",
    "disk_full",
    "disk_ill",
    "database_away",
    "provider_away",
    "link_cut",
    "redis_away",
    "redis_forgets",
    "redis_fails_over",
    "redis_slow",
]
PROVIDERS: Final = ("alpha", "beta", "gamma")
TEAMS: Final = ("team_a", "team_b", "team_c")
PRICES: Final = {"input": "1000", "output": "4000", "batch_discount": "0.5", "version": "simulated"}
"""Dear, so that a budget is spent within a minute."""
INPUT_NANOUSD: Final = 1_000_000
OUTPUT_NANOUSD: Final = 4_000_000
"""The same of one token; half of it in a provider's batch."""
CALM: Final = Weather()
_BAD_SLIPS: Final[tuple[Slip, ...]] = ("busy", "broken", "does_and_hangs_up", "hangs_up", "cut")
_BAD_LINES: Final[tuple[LineSlip, ...]] = ("fails", "not_made", "garbage", "twice", "a_strangers")
_BAD: Final[Mapping[Behaviour, float]] = {
    "no_usage": 4,
    "usage_twice": 3,
    "busy": 4,
    "overloaded": 2,
    "broken": 4,
    "unavailable": 2,
    "refuses": 2,
    "silent": 1,
    "stalls": 2,
    "cut": 4,
    "garbage": 1,
    "hangs_up": 3,
}
_MANNERS: Final[Mapping[Manner, float]] = {"patient": 8, "hangs_up": 3, "slow_reader": 1, "half_closes": 1}
_TROUBLES: Final[Mapping[Trouble, float]] = {
    "kill_worker": 4,
    "kill_books": 2,
    "lose_power": 2,
    "restart_worker": 1,
    "clock_back": 1,
    "clock_forward": 1,
    "clock_month": 1,
    "clock_summer": 1,
    "freeze": 2,
    "disk_full": 3,
    "disk_ill": 2,
    "database_away": 3,
    "provider_away": 5,
}


_BATCH_TROUBLES: Final[Mapping[Trouble, float]] = {
    "kill_lines": 10,
    "lose_power": 1,
    "database_away": 2,
    "provider_away": 2,
    "clock_day": 1,
    "clock_summer": 1,
    "freeze": 1,
}


_LINK_TROUBLES: Final[Mapping[Trouble, float]] = {"link_cut": 3, "kill_books": 3, "kill_worker": 1, "database_away": 1}
_REDIS_TROUBLES: Final[Mapping[Trouble, float]] = {
    "redis_away": 3,
    "redis_forgets": 2,
    "redis_fails_over": 3,
    "redis_slow": 2,
    "kill_worker": 2,
    "freeze": 1,
}


class Event(msgspec.Struct, frozen=True):
    """Something that goes wrong."""

    at_s: float
    trouble: Trouble
    for_s: float
    steps: int
    """For a kill: so many steps of the process's code after its time."""
    which: int


class Order(msgspec.Struct, frozen=True):
    """A batch that a caller makes."""

    at_s: float
    team: str
    lines: tuple[tuple[str, int], ...]
    """The model and the longest answer of each."""
    window: Window
    cancel_s: float | None
    """Seconds after its making at which it is cancelled."""
    which: int


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """The batch tier of a seed."""

    runners: int
    orders: tuple[Order, ...]
    moods: Mapping[str, BatchMood]
    section: Mapping[str, Any]


class Question(msgspec.Struct, frozen=True):
    """One caller's request."""

    at_s: float
    team: str
    model: str
    stream: bool
    max_tokens: int
    manner: Manner
    hang_up_s: float
    once: str
    which: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the seed decides beforehand."""

    workers: int
    sync: str
    length_s: float
    questions: tuple[Question, ...]
    events: tuple[Event, ...]
    weather: Weather
    temper: Temper
    moods: Mapping[str, Mood]
    budget_nanousd: int | None
    concurrency: int | None
    requests_per_minute: int | None
    queue_requests: int | None
    batches: Batches | None
    redis_loses: float | None
    """Share of Redis's answers that are lost; None without Redis."""
    is_linked: bool
    """True where workers ask the control plane, not the database."""

    @property
    def is_well(self) -> bool:
        """True where nothing goes wrong by which processes could count apart from each other."""
        return not self.events and self.weather is CALM and not self.redis_loses and self.temper == Temper()


def _some(chance: Random, weights: Mapping[Any, float]) -> Any:
    return chance.choices(list(weights), list(weights.values()))[0]


def plan_of(machine: Machine) -> Plan:
    """Draw the seed's plan."""
    chance = machine.chance("plan")
    length_s = chance.choice((6.0, 15.0, 40.0))
    workers = chance.choice((1, 1, 2))
    sync = chance.choice(("process", "process", "power"))
    batches = _batches(machine.chance("batches"), length_s)
    events = _events(chance, length_s, sync, _TROUBLES)
    if batches is not None:
        events += _events(machine.chance("batch troubles"), length_s, sync, _BATCH_TROUBLES)
    redis = machine.chance("redis plan")
    redis_loses = redis.choice((0.0, 0.0, 0.02)) if redis.random() < 0.4 else None
    if redis_loses is not None:
        events += _events(redis, length_s, sync, _REDIS_TROUBLES)
    link = machine.chance("link plan")
    is_linked = link.random() < 0.4
    if is_linked:
        events += _events(link, length_s, sync, _LINK_TROUBLES)
    return Plan(
        workers=workers,
        sync=sync,
        length_s=length_s,
        questions=_questions(chance, length_s, workers),
        events=events,
        weather=_weather(chance),
        temper=_temper(chance),
        moods={name: _mood(chance) for name in PROVIDERS},
        budget_nanousd=chance.choice((None, 80_000_000, 400_000_000, 2_000_000_000)),
        concurrency=chance.choice((None, 2, 4)),
        requests_per_minute=chance.choice((None, 12, 60)),
        queue_requests=chance.choice((None, 1, 2, 4)),
        batches=batches,
        redis_loses=redis_loses,
        is_linked=is_linked,
    )


def _questions(chance: Random, length_s: float, workers: int) -> tuple[Question, ...]:
    bursts = [chance.uniform(0, length_s) for _ in range(4)]
    found = []
    for _ in range(chance.choice((8, 20, 35))):
        at_s = chance.uniform(0, length_s)
        if chance.random() < 0.5:
            at_s = min(length_s, chance.choice(bursts) + chance.expovariate(20))
        found.append(
            Question(
                at_s=at_s,
                team=chance.choice(TEAMS),
                model=chance.choice(("auto", "large", "small")),
                stream=chance.random() < 0.6,
                max_tokens=chance.choice((5, 20, 60)),
                manner=_some(chance, _MANNERS),
                hang_up_s=chance.expovariate(1.0),
                once=f"once-{chance.randrange(4)}" if chance.random() < 0.15 else "",
                which=chance.randrange(workers),
            )
        )
    return tuple(sorted(found, key=lambda each: each.at_s))


def _batches(chance: Random, length_s: float) -> Batches | None:
    if chance.random() < 0.5:
        return None
    orders = [
        Order(
            at_s=chance.uniform(0, length_s * 0.7),
            team=chance.choice(TEAMS),
            lines=_lines(chance),
            window=chance.choice(("24h", "24h", "24h", "1h", "background")),
            cancel_s=chance.expovariate(0.3) if chance.random() < 0.25 else None,
            which=chance.randrange(9),
        )
        for _ in range(chance.choice((1, 2, 3)))
    ]
    return Batches(
        runners=chance.choice((1, 1, 2)),
        orders=tuple(sorted(orders, key=lambda each: each.at_s)),
        moods={name: _batch_mood(chance) for name in PROVIDERS},
        section={
            "lease_s": chance.choice((2.0, 8.0, 30.0)),
            "poll_s": chance.choice((0.5, 2.0)),
            "provider_poll_s": chance.choice((1.0, 3.0)),
            "providers": chance.random() < 0.7,
            "flex": chance.random() < 0.3,
            "at_once": chance.choice((2, 8, 64)),
            "tries": chance.choice((2, 8)),
        },
    )


def _lines(chance: Random) -> tuple[tuple[str, int], ...]:
    model = chance.choice(("large", "small", "auto", ""))
    return tuple(
        (model or chance.choice(("large", "small")), chance.choice((5, 20))) for _ in range(chance.randrange(1, 13))
    )


def _batch_mood(chance: Random) -> BatchMood:
    slips: dict[Slip, float] = {"answers": 20.0}
    lines: dict[LineSlip, float] = {"answers": 20.0}
    endings = {"completed": 10.0}
    if chance.random() < 0.7:
        worse = chance.choice((0.5, 2.0))
        slips |= {name: worse for name in _BAD_SLIPS if chance.random() < 0.6}
        lines |= {name: worse for name in _BAD_LINES if chance.random() < 0.5}
        endings |= {name: worse for name in ("expired", "failed", "cancelled") if chance.random() < 0.4}
    return BatchMood(slips=slips, lines=lines, endings=endings, takes_s=chance.choice((1.0, 5.0, 30.0)))


def _events(chance: Random, length_s: float, sync: str, troubles: Mapping[Trouble, float]) -> tuple[Event, ...]:
    found = []
    for _ in range(chance.choice((0, 1, 2, 5))):
        trouble: Trouble = _some(chance, troubles)
        if trouble == "lose_power" and sync != "power":
            # What the kernel has outlasts a process, and no more is promised.
            trouble = "kill_worker"
        found.append(
            Event(
                chance.uniform(0, length_s),
                trouble,
                chance.uniform(0.2, 10),
                1 + chance.randrange(60),
                chance.randrange(9),
            )
        )
    return tuple(sorted(found, key=lambda each: each.at_s))


def _weather(chance: Random) -> Weather:
    if chance.random() < 0.5:
        return CALM
    return Weather(
        latency_s=chance.choice((0.0005, 0.005, 0.05)),
        refused=chance.choice((0.0, 0.05, 0.3)),
        lost=chance.choice((0.0, 0.02)),
        cut=chance.choice((0.0, 0.1)),
        pieces=chance.choice((0.1, 0.6)),
    )


def _temper(chance: Random) -> Temper:
    if chance.random() < 0.5:
        return Temper()
    return Temper(
        turn_s=chance.choice((0.0005, 0.01)),
        fails=chance.choice((0.0, 0.01, 0.1)),
        forgets=chance.choice((0.0, 0.02)),
        stalls=chance.choice((0.0, 0.01)),
    )


def _mood(chance: Random) -> Mood:
    weights: dict[Behaviour, float] = {"answers": 20.0}
    if chance.random() < 0.7:
        worse = chance.choice((0.3, 1.0, 4.0))
        weights |= {name: weight * worse for name, weight in _BAD.items() if chance.random() < 0.6}
    return Mood(weights=weights, first_s=chance.choice((0.05, 0.3, 1.0)), word_s=chance.choice((0.005, 0.05)))


def configuration(plan: Plan, folder: str) -> dict[str, Any]:
    """Return the gateway's configuration file."""
    limits = {"concurrency": plan.concurrency, "requests_per_minute": plan.requests_per_minute}
    each = {name: value for name, value in limits.items() if value is not None}
    queues = {}
    if plan.queue_requests is not None:
        queues = {
            "own": {
                "targets": ["small"],
                "tokens_in_flight": 100_000,
                "requests_in_flight": plan.queue_requests,
                "max_wait_s": {"interactive": 5},
            }
        }
    return {
        "providers": {
            "models": [
                _model("small", 0.5, ("alpha", "beta")),
                _model("large", 1.0, ("beta", "gamma")),
            ],
            "timeouts": {"connect_s": 2, "first_token_interactive_s": 6, "idle_s": 8, "total_s": 60},
            "breaker": {"base_ejection_s": 1, "consecutive_failures": 2},
        },
        "limits": {"team": each},
        "queues": queues,
        "cost": {
            "journal_dir": f"{folder}/journal",
            "journal_sync": plan.sync,
            "drain_interval_s": 0.1,
            "budgets": {"patience_s": 2, "poll_s": 0.5},
        },
        "deadlines": {"interactive": {"answer_s": 60}},
        "classifier": {"enabled": False},
        "accounts": {"lookup_timeout_s": 2},
        "batch": {"enabled": plan.batches is not None, **({} if plan.batches is None else plan.batches.section)},
    }


def _model(name: str, capability: float, providers: tuple[str, ...]) -> dict[str, Any]:
    return {
        "model_id": name,
        "provider": "simulated",
        "prices": PRICES,
        "max_context_tokens": 32_000,
        "capability": capability,
        "deployments": [
            {
                "name": each,
                "kind": "openai",
                "base_url": f"http://{each}/v1",
                "upstream_model": name,
                "batch_api": "openai",
            }
            for each in providers
        ],
    }
