"""Trials of `benchmarks.availability`: each a fresh gateway with its defaults, some of whose targets are ill, and a steady load."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import figures
from benchmarks.clients import Pacer, add_teams, own_folder
from benchmarks.load_test import Stage
from tests.ill_upstream import FROM_ANTHROPIC, ILLNESSES, NOBODY, TOO_LONG, Illness, Place, upstream_process
from tests.processes import Site, make_site, serving
from tests.running_gateway import model
from tests.three_wires import WIRES, Answer, ask

QUESTION: Final = "What is the capital of France?"
POISON: Final = "a picture that the engine cannot read"
MOST_CALLS: Final = 1.2
"""Upstream calls a request that a total outage may cost."""
_KEY_NAME: Final = "MADE_UP_ANTHROPIC_KEY"
_FIRST_TOKEN_S: Final = 1.0
"""First-token timeout in trials with black holes; the default is 15 s."""
_LATE_S: Final = 6.0
_DEADLINE_MS: Final = 5_000
_WARM_WITHIN_S: Final = 60.0
_BOOKED_WITHIN_S: Final = 20.0
_QUIET_S: Final = 0.5
_MOST_TOLD: Final = 3

Town = Callable[[Sequence[Place]], tuple[list[dict[str, Any]], dict[str, Any]]]
"""The models and sections of a gateway before these places."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at a steady rate, on the three wires in turn."""

    per_s: float = 10.0
    count: int = 60
    model: str = "auto"
    text: str = QUESTION
    streams_only: bool = False
    headers: Mapping[str, str] = {}
    teams: int = 1
    """Teams that ask in turn."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway, what ails its targets, and who asks."""

    bar: str
    name: str
    town: Town
    places: int = 2
    ills: Mapping[int, Illness] = {}
    """Illnesses by the place of the target."""
    load: Load = Load()
    beside: Load | None = None
    """Load of another team, which may fail."""
    warm: str = ""
    """A model that must answer before the illness begins."""
    outage: bool = False
    """Nobody is well: calls are what is looked at."""


def _first_and_second(first: Callable[[Place], dict[str, Any]], **sections: Any) -> Town:
    def made(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        models = [
            model("first", [first(places[0])], prices={"input": 1, "output": 1}),
            model("second", [places[1].deployment()], prices={"input": 9, "output": 9}),
        ]
        return models, sections

    return made


def _refused(_place: Place) -> dict[str, Any]:
    return {"name": "main", "kind": "openai", "base_url": f"{NOBODY}/v1", "upstream_model": "ok"}


def _deployment(illness: str) -> Callable[[Place], dict[str, Any]]:
    if illness in FROM_ANTHROPIC:
        return lambda place: place.anthropic_deployment(f"env:{_KEY_NAME}")
    return Place.deployment


def first_seconds(per_s: float, count: int, only: Sequence[str] = ()) -> list[Trial]:
    """Try one of two targets being ill from the first second, in each of the ways."""
    bar = f"one of two ill from the first second, {per_s:g}/s"
    limits = {"timeouts": {"first_token_interactive_s": _FIRST_TOKEN_S}}
    trials = [
        Trial(
            bar=bar,
            name=name,
            town=_first_and_second(_deployment(name), **({"providers": limits} if illness.silent else {})),
            ills={0: illness},
            load=Load(per_s=per_s, count=count, streams_only=illness.silent),
        )
        for name, illness in ILLNESSES.items()
    ]
    nobody = Trial(bar=bar, name="refused", town=_first_and_second(_refused), load=Load(per_s=per_s, count=count))
    return [trial for trial in (*trials, nobody) if not only or trial.name in only]


def _two_deployments(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return [model("twice", [places[0].deployment("ill"), places[1].deployment("well")])], {}


def _throttled_beside(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    models, _ = _first_and_second(Place.deployment)(places)
    models.append(model("throttled", [places[2].deployment("one"), places[2].deployment("other")]))
    return models, {"policy": {"auto": ["first", "second"]}}


def _small_and_large(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    models = [model("small", [places[0].deployment()]), model("large", [places[1].deployment()])]
    return models, {"policy": {"fallbacks": {"small": ["large"]}}}


def _sole_engine(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return [model("own", [places[0].deployment(kind="vllm")])], {}


def pool_of(places: Sequence[Place]) -> dict[str, Any]:
    """Return a pool of these replicas that serves the target `own`."""
    replicas = [{"name": f"replica-{number}", "url": place.url} for number, place in enumerate(places)]
    watch = {"every_s": 0.5, "timeout_s": 5.0}
    return {"name": "own", "targets": ["own"], "upstream_model": "ok", "replicas": replicas, "watch": watch}


def pooled_model(**fields: Any) -> dict[str, Any]:
    """Return the target that such a pool serves."""
    made = model("own", [], provider="self-hosted", prices={"input": "0.4", "output": "0.4"}, **fields)
    del made["deployments"]
    return made


def _pool_and_paid(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    paid = model("paid", [places[2].deployment()], prices={"input": 9, "output": 9})
    return [pooled_model(), paid], {"selfhosted": {"pools": [pool_of(places[:2])]}}


def others(count: int) -> list[Trial]:
    """Try all other cases: deployments, other teams, long prompts, engines, slow pools."""
    throttled = ILLNESSES["429, bare"]
    load = Load(count=count)
    poisoned = msgspec.structs.replace(ILLNESSES["500"], only=POISON)
    late = Illness(late_s=_LATE_S)
    within = {"x-request-timeout-ms": str(_DEADLINE_MS)}
    two = [
        Trial(
            bar="one of two deployments",
            name=name,
            town=_two_deployments,
            ills={0: ILLNESSES[name]},
            load=Load(count=count, model="twice"),
        )
        for name in ("429 insufficient_quota", "429, retry-after 20", "429, bare")
    ]
    return [
        *two,
        Trial(
            bar="another team",
            name="floods a throttled model",
            places=3,
            town=_throttled_beside,
            ills={0: throttled, 2: throttled},
            load=load,
            beside=Load(per_s=40.0, count=count * 4, model="throttled"),
        ),
        Trial(
            bar="another team",
            name="makes the engine say 500",
            places=1,
            town=_sole_engine,
            ills={0: poisoned},
            load=Load(count=count, model="own"),
            beside=Load(per_s=40.0, count=count * 4, model="own", text=POISON),
        ),
        Trial(
            bar="a larger fallback",
            name="context_length_exceeded",
            town=_small_and_large,
            ills={0: TOO_LONG},
            load=Load(count=count, model="small"),
        ),
        Trial(
            bar="a pool too slow",
            name=f"first token after {_LATE_S:g} s, deadline {_DEADLINE_MS / 1000:g} s",
            places=3,
            town=_pool_and_paid,
            ills={0: late, 1: late},
            load=Load(count=count, headers=within),
            warm="own",
        ),
    ]


def outages(seconds: float) -> list[Trial]:
    """Let every target fail, for one team and for ten."""
    trials = []
    for teams in (1, 10):
        load = Load(count=round(10 * seconds), teams=teams)
        who = f"{teams} team{'s' if teams > 1 else ''}"
        trials += [
            Trial(
                bar="total outage",
                name=f"{name}, {who}",
                town=_first_and_second(Place.deployment),
                ills=dict.fromkeys(range(2), ILLNESSES[name]),
                load=load,
                outage=True,
            )
            for name in ("500", "reset", "429, bare")
        ]
        trials.append(
            Trial(bar="total outage", name=f"refused, {who}", town=_nobody_at_all, places=1, load=load, outage=True)
        )
    return trials


def _nobody_at_all(places: Sequence[Place]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return [model(name, [_refused(places[0])]) for name in ("first", "second")], {}


async def play(stage: Stage, trials: Sequence[Trial], *, at_once: int) -> list[dict[str, Any]]:
    """Return the figures of each trial, so many at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(trial: Trial) -> dict[str, Any]:
        async with places:
            folder = own_folder(stage.folder, f"trial-{next(_NUMBERS)}")
            found = await _try(folder, trial)
        stage.say(
            f"{trial.bar}, {trial.name}: {found['answered']} of {found['requests']} answered; {told(found)}".rstrip(
                "; "
            )
        )
        return found

    return list(await asyncio.gather(*(one(trial) for trial in trials)))


_NUMBERS: Final = iter(range(1_000_000))


def told(found: Mapping[str, Any]) -> str:
    """Return the most frequent failures, in a few words."""
    some = [f"{count} of {what}" for what, count in found["failed"].items()]
    return ", ".join([*some[:_MOST_TOLD], *(["…"] if len(some) > _MOST_TOLD else [])])


async def _try(folder: Path, trial: Trial) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60))
        )
        _, places = stack.enter_context(upstream_process(trial.places, session))
        models, sections = trial.town(places)
        site = await make_site(folder, models, variables={_KEY_NAME: "sk-ant-made-up-0123456789"}, **sections)
        teams = [site.key, *await add_teams(site, [f"team_{number}" for number in range(1, trial.load.teams)])]
        other = await add_teams(site, ["team_other"])
        if not trial.warm:
            await _begin(trial, places)
        server = await stack.enter_async_context(serving(site))
        if trial.warm:
            await _warm(session, server.url, site.key, trial.warm)
            await _begin(trial, places)
        before = await _asked(places)
        pacers = [_pacer(session, server.url, trial.load, teams)]
        loads = [trial.load]
        if trial.beside is not None:
            pacers.append(_pacer(session, server.url, trial.beside, other))
            loads.append(trial.beside)
        await asyncio.gather(*(pacer.run(load.count / load.per_s) for pacer, load in zip(pacers, loads, strict=True)))
        calls: int = await _asked(places) - before
        if trial.beside is not None or "refused" in trial.name:
            calls = await _attempts(site)
    return _figures(trial, pacers[0].record, calls)


async def _begin(trial: Trial, places: Sequence[Place]) -> None:
    for number, illness in trial.ills.items():
        await places[number].become(illness)


async def _warm(session: aiohttp.ClientSession, url: str, key: str, name: str) -> None:
    async with asyncio.timeout(_WARM_WITHIN_S):
        while not (await ask(session, url, key, QUESTION, model=name)).good:  # noqa: ASYNC110 - a gateway tells of no events
            await asyncio.sleep(0.1)


async def _asked(places: Sequence[Place]) -> int:
    return sum([await place.asked() for place in places])


def _pacer(session: aiohttp.ClientSession, url: str, load: Load, keys: Sequence[str]) -> Pacer[Answer]:
    numbers = iter(range(load.count + 1))

    async def one(_gate: int, at: str) -> Answer:
        number = next(numbers)
        return await ask(
            session,
            at,
            keys[number % len(keys)],
            load.text,
            wire=WIRES[number % len(WIRES)],
            model=load.model,
            stream=load.streams_only or number % 2 == 0,
            headers=load.headers,
        )

    return Pacer([url], one, load.per_s)


async def _attempts(site: Site) -> int:
    """Return the attempts of the trial's own teams, once the last of them is in the ledger."""
    give_up_at = time.monotonic() + _BOOKED_WITHIN_S
    last = -1
    while time.monotonic() < give_up_at:
        now = len(await site.rows("entry = 'reserve' AND team_id <> 'team_other'"))
        if now == last:
            break
        last = now
        await asyncio.sleep(_QUIET_S)
    return last


def _figures(trial: Trial, record: Sequence[Answer], calls: int) -> dict[str, Any]:
    good = [answer for answer in record if answer.good]
    first_us = [answer.first_s * 1e6 for answer in good]
    share = calls / max(1, len(record))
    return {
        "bar": trial.bar,
        "name": trial.name,
        "requests": len(record),
        "answered": len(good),
        "failed": dict(Counter(answer.told for answer in record if not answer.good).most_common()),
        "first_token": figures.quantiles_ms(first_us),
        "calls_per_request": share,
        "outage": trial.outage,
        "met": share <= MOST_CALLS if trial.outage else len(good) == len(record) == trial.load.count,
    }
