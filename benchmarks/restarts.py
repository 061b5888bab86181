"""Rolling restarts under load: no stream is dropped after its first byte, no request fails, and each is booked once.

    python -m benchmarks.restarts [--quick] [--json build/restarts.json]

Two gateways on ports of their own, on one database and one Redis. Callers take streams of two seconds, each from a gateway that
says that it is ready, and go to the other when they are refused before the first byte, as a balancer does. The gateways
are stopped (SIGTERM) and started again in turn; then the workers of one gateway are replaced in place (SIGUSR2).
See docs/benchmarks.md.
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import figures, load_test
from benchmarks.clients import caller, chat, maybe_postgres, own_folder
from benchmarks.load_test import Stage
from testing.scripted.log import LogLine
from tests.postgres import Postgres
from tests.processes import Oracle, Server, Site, make_site, oracle, start
from tests.redis_server import quiet_port, running_redis
from tests.running_gateway import model

CALLERS: Final = 24
TOKENS: Final = 40
EVERY_MS: Final = 50
DRAIN_S: Final = 10
_SCRIPT: Final = f"tokens-{TOKENS}+every-{EVERY_MS}ms"
_LOOK_S: Final = 0.1
_BETWEEN_S: Final = 1.0
_GIVE_UP_S: Final = 30.0
"""Seconds that one request goes from gateway to gateway before it counts as failed."""
_ENDED_WITHIN_S: Final = 30.0
_BOOKED_WITHIN_S: Final = 30.0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    restarts: int
    workers: int
    replacements: int


FULL: Final = Size(restarts=20, workers=2, replacements=5)
QUICK: Final = Size(restarts=4, workers=2, replacements=2)


class Gate(msgspec.Struct):
    """One place for a gateway, whoever fills it at the moment."""

    name: str
    port: int
    server: Server | None = None
    ready: bool = False
    starts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Tally(msgspec.Struct):
    """The replies that callers got."""

    whole: int = 0
    dropped: list[str] = []
    """Streams that broke after their first byte."""
    failed: list[str] = []
    turned_away: Counter[str] = msgspec.field(default_factory=Counter)
    """Refused or broken before the first byte, and asked elsewhere."""
    waited_us: list[float] = []
    """Times until the first byte, all retries included."""
    closed: bool = False
    flowing: Counter[str] = msgspec.field(default_factory=Counter)
    """Streams under way, by gateway."""


class _TurnedAway(Exception):
    """Nothing of an answer has come; another gateway may be asked."""


class _Dropped(Exception):
    """An answer broke off."""


async def call_on(gates: Sequence[Gate], session: aiohttp.ClientSession, tally: Tally, chance: random.Random) -> None:
    """Call as one caller does, again and again."""
    body = chat("stream", stream=True)
    while not tally.closed:
        try:
            tally.waited_us.append(await _stream_somewhere(gates, session, tally, chance, body))
            tally.whole += 1
        except _Dropped as error:
            tally.dropped.append(str(error))
        except _TurnedAway as error:
            tally.failed.append(str(error))
        await asyncio.sleep(chance.uniform(0.0, 0.2))


async def _stream_somewhere(
    gates: Sequence[Gate], session: aiohttp.ClientSession, tally: Tally, chance: random.Random, body: bytes
) -> float:
    """Ask for a whole stream. Returns the microseconds until its first byte."""
    began = time.monotonic()
    last: Gate | None = None
    while True:
        try:
            last = _choose(gates, last, chance)
            return (await _stream(session, last, body, tally) - began) * 1e6
        except _TurnedAway as error:
            tally.turned_away[str(error)] += 1
            if time.monotonic() - began > _GIVE_UP_S:
                raise
            await asyncio.sleep(0.05)


def _choose(gates: Sequence[Gate], last: Gate | None, chance: random.Random) -> Gate:
    """Choose a ready gateway, another one than the last where there is one."""
    ready = [gate for gate in gates if gate.ready]
    if not ready:
        raise _TurnedAway("no gateway is ready")
    return chance.choice([gate for gate in ready if gate is not last] or ready)


async def _stream(session: aiohttp.ClientSession, gate: Gate, body: bytes, tally: Tally) -> float:
    """Return the time of its first byte. Raises _TurnedAway before that, and _Dropped after."""
    first_at = 0.0
    said = b""
    try:
        async with session.post(f"{gate.url}/v1/chat/completions", data=body) as reply:
            if reply.status != 200:
                raise _TurnedAway(f"status {reply.status}")
            async for piece in reply.content.iter_any():
                tally.flowing[gate.name] += not first_at
                first_at = first_at or time.monotonic()
                said += piece
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        if first_at:
            raise _Dropped(f"{type(error).__name__} after {said.count(b'data: ')} events") from error
        raise _TurnedAway(type(error).__name__) from error
    finally:
        tally.flowing[gate.name] -= bool(first_at)
    if not said.endswith(b"data: [DONE]\n\n") or said.count(b'"content":"') < TOKENS or b'"error"' in said:
        raise _Dropped(f"{said.count(b'data: ')} events, ends with {said[-60:]!r}")
    return first_at


async def watch(gates: Sequence[Gate], session: aiohttp.ClientSession) -> None:
    """Ask each gateway, as a balancer does, for its wish for requests."""
    while True:
        for gate in gates:
            gate.ready = await _is_ready(gate, session)
        await asyncio.sleep(_LOOK_S)


async def _is_ready(gate: Gate, session: aiohttp.ClientSession) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with session.get(f"{gate.url}/readyz") as reply:
            return reply.status == 200
    return False


async def open_gate(site: Site, gate: Gate, workers: int) -> float:
    """Start its gateway. Returns the seconds until it was ready."""
    began = time.monotonic()
    gate.starts += 1
    gate.server = start(site, f"{gate.name}-{gate.starts}", "--port", str(gate.port), "--workers", str(workers))
    await gate.server.ready()
    return time.monotonic() - began


async def close_gate(gate: Gate) -> tuple[int, float]:
    """Send SIGTERM, and return the exit status and the seconds until the end."""
    assert gate.server is not None
    began = time.monotonic()
    gate.server.signal(signal.SIGTERM)
    async with asyncio.timeout(DRAIN_S + _ENDED_WITHIN_S):
        status = await gate.server.ended()
    return status, time.monotonic() - began


@contextlib.asynccontextmanager
async def crowd(gates: Sequence[Gate], key: str, tally: Tally) -> AsyncIterator[None]:
    """Run callers until the block ends; then each ends what it has begun."""
    async with caller(key) as session, caller("") as prober:
        for gate in gates:
            gate.ready = await _is_ready(gate, prober)
        watching = asyncio.create_task(watch(gates, prober))
        callers = [asyncio.create_task(call_on(gates, session, tally, random.Random(seed))) for seed in range(CALLERS)]
        try:
            yield
        finally:
            tally.closed = True
            await asyncio.gather(*callers, return_exceptions=True)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def roll(
    stage: Stage, size: Size, site: Site, gates: Sequence[Gate], tally: Tally, found: dict[str, Any]
) -> None:
    """Roll the gateways in turn, so that one is always there."""
    for number in range(size.restarts):
        await asyncio.sleep(_BETWEEN_S)
        gate = gates[number % len(gates)]
        found["flowing"].append(tally.flowing[gate.name])
        status, stop_s = await close_gate(gate)
        found["exit_statuses"].append(status)
        found["stop_s"].append(stop_s)
        found["start_s"].append(await open_gate(site, gate, size.workers))
        stage.say(
            f"restart {number + 1} of {size.restarts}: status {status}, stopped in {stop_s:.1f} s with {found['flowing'][-1]} streams"
        )
    await asyncio.sleep(_BETWEEN_S)


async def replace(stage: Stage, size: Size, gate: Gate, tally: Tally, found: dict[str, Any]) -> None:
    """Replace all workers of one gateway, one after the other, while it goes on listening."""
    assert gate.server is not None
    for number in range(size.replacements):
        await asyncio.sleep(_BETWEEN_S)
        before = set(gate.server.workers())
        began = time.monotonic()
        found["flowing"].append(tally.flowing[gate.name])
        gate.server.signal(signal.SIGUSR2)
        while (before & (now := set(gate.server.workers()))) or len(now) < size.workers:
            if gate.server.process.poll() is not None or time.monotonic() - began > size.workers * (
                DRAIN_S + _ENDED_WITHIN_S
            ):
                raise RuntimeError("the workers were not replaced")
            await asyncio.sleep(_LOOK_S)
        found["replace_s"].append(time.monotonic() - began)
        stage.say(f"replacement {number + 1} of {size.replacements}: {found['replace_s'][-1]:.1f} s")
    await asyncio.sleep(_BETWEEN_S)


async def booked_wrong(site: Site, seen: Sequence[LogLine]) -> list[str]:
    """Return the requests that are booked wrong: each one that reached the upstream should have one reserve and one
    settlement, with the upstream's own tokens.
    """
    rows = await site.rows()
    arrivals = Counter(line.request_id for line in seen if line.event == "arrived")
    ended = {line.request_id: line for line in seen if line.event == "ended"}
    entries: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        entries[row["request_id"], row["attempt"]].append(row)
    booked = Counter(request_id for request_id, _ in entries)
    wrong = [
        f"{request_id}: {count} calls, {booked[request_id]} booked"
        for request_id, count in arrivals.items()
        if booked[request_id] != count
    ]
    for (request_id, attempt), found in entries.items():
        kinds = [row["entry"] for row in found]
        if kinds[:1] != ["reserve"] or len(kinds) != 2:
            wrong.append(f"{request_id}, attempt {attempt}: {kinds}")
        elif request_id in ended and arrivals[request_id] == 1:
            told = (found[1]["entry"], found[1]["input_tokens"], found[1]["output_tokens"])
            true = ("settle", ended[request_id].prompt_tokens, ended[request_id].completion_tokens)
            wrong += [f"{request_id}: booked {told}, truly {true}"] if told != true else []
    return wrong


async def _books(site: Site, upstream: Oracle) -> list[str]:
    """Return the requests that are booked wrong once the last settlements have come from the journal."""
    give_up_at = time.monotonic() + _BOOKED_WITHIN_S
    while True:
        wrong = await booked_wrong(site, upstream.seen())
        if not wrong or time.monotonic() > give_up_at:
            return wrong
        await asyncio.sleep(0.5)


async def play(stage: Stage, size: Size, name: str, count: int, postgres: Postgres | None) -> dict[str, Any]:
    """Play with this many gateways: two are restarted in turn, a single one gets its workers replaced."""
    folder = own_folder(stage.folder, name)
    found: dict[str, Any] = {"exit_statuses": [], "stop_s": [], "start_s": [], "replace_s": [], "flowing": []}
    tally = Tally()
    with oracle(folder) as upstream, running_redis() as redis:
        site = await make_site(
            folder,
            [model("stream", [upstream.deployment(_SCRIPT)])],
            database_url=await postgres.database() if postgres else None,
            variables={"WEIGHBRIDGE_REDIS_URL": redis.url},
            server={"drain_s": DRAIN_S},
        )
        gates = [Gate(f"{name}-{number}", quiet_port()) for number in range(count)]
        try:
            await asyncio.gather(*(open_gate(site, gate, size.workers) for gate in gates))
            async with crowd(gates, site.key, tally):
                if count > 1:
                    await roll(stage, size, site, gates, tally, found)
                else:
                    await replace(stage, size, gates[0], tally, found)
            found["exit_statuses"] += [status for status, _ in [await close_gate(gate) for gate in gates]]
        finally:
            for gate in gates:
                if gate.server is not None:
                    gate.server.kill()
        seen = upstream.seen()
        wrong = await _books(site, upstream)
    found |= _figures(tally, seen, wrong)
    stage.problems += [f"{name}: {problem}" for problem in problems_of(found, tally, wrong)]
    return found


def _figures(tally: Tally, seen: Sequence[LogLine], wrong: Sequence[str]) -> dict[str, Any]:
    return {
        "streams": tally.whole,
        "dropped": len(tally.dropped),
        "failed": len(tally.failed),
        "turned_away": dict(tally.turned_away),
        "first_byte": figures.quantiles_ms(tally.waited_us),
        "reached_upstream": sum(line.event == "arrived" for line in seen),
        "booked_wrong": len(wrong),
    }


def problems_of(found: dict[str, Any], tally: Tally, wrong: Sequence[str]) -> list[str]:
    told = [f"dropped: {what}" for what in tally.dropped[:5]]
    told += [f"failed: {what}" for what in tally.failed[:5]]
    told += [f"booked wrong: {what}" for what in wrong[:5]]
    bad = [status for status in found["exit_statuses"] if status != 0]
    return [*told, *([f"exit statuses {bad}"] if bad else []), *([] if found["streams"] else ["no stream at all"])]


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL

    async def everything() -> dict[str, Any]:
        with maybe_postgres() as postgres:
            return {
                "callers": CALLERS,
                "workers": size.workers,
                "stream_s": TOKENS * EVERY_MS / 1000,
                "database": "postgresql" if postgres else "sqlite",
                "rounds": {
                    f"{size.restarts} restarts of 2 gateways": await play(stage, size, "restart", 2, postgres),
                    f"{size.replacements} times new workers": await play(stage, size, "replace", 1, postgres),
                },
            }

    return asyncio.run(everything())


def show(report: dict[str, Any]) -> None:
    heads = [
        "",
        "streams",
        "dropped",
        "failed",
        "asked elsewhere",
        "booked wrong",
        "exit not 0",
        "flowing",
        "first byte p99, ms",
    ]
    rows = [
        [
            name,
            f"{found['streams']:,}",
            str(found["dropped"]),
            str(found["failed"]),
            str(sum(found["turned_away"].values())),
            str(found["booked_wrong"]),
            str(sum(status != 0 for status in found["exit_statuses"])),
            figures.number(sum(found["flowing"]) / max(1, len(found["flowing"])), 1),
            figures.number(found["first_byte"]["p99_ms"], 0),
        ]
        for name, found in report["rounds"].items()
    ]
    print(figures.table(heads, rows))
    print("\nflowing: streams that a gateway was in the middle of when it was told to stop, on average")
    for name, found in report["rounds"].items():
        spent = {what: found[what] for what in ("stop_s", "start_s", "replace_s") if found[what]}
        told = ", ".join(f"{what} {min(each):.1f} to {max(each):.1f}" for what, each in spent.items())
        print(f"{name}: {told}; asked elsewhere because of: {found['turned_away'] or 'nothing'}")


if __name__ == "__main__":
    sys.exit(load_test.run("restarts", __doc__, measure, show))
