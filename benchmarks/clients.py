"""Parts that load tests of several gateways share: a site on real PostgreSQL and Redis, and callers that record every request.

These tests ask some hundred requests a second at most, so one loop drives them all; see benchmarks.driver for real load.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import aiohttp
import msgspec

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from accounts.store import AccountStore
from gateway.database import make_engine
from tests.postgres import Postgres, postgres_binaries, running_postgres
from tests.processes import Server, Site
from tests.running_gateway import PEPPER

REQUEST_TIMEOUT_S: Final = 60.0
MAX_OPEN: Final = 500
"""Requests under way at once; one that comes due beyond that is skipped and counted."""
LOCAL_METRIC: Final = "weighbridge_limits_local_total"
UP_METRIC: Final = "weighbridge_redis_up"
_AGREE_WITHIN_S: Final = 60.0
Outcome = TypeVar("Outcome")
_METRIC: Final = re.compile(r"^([a-z_]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request and what came of it. Seconds of this machine's monotonic clock."""

    gate: int
    sent_at: float
    answered_at: float
    """Time at which the head of the reply was there."""
    over_at: float
    status: int
    """0 when there was no reply, or only a part of one."""
    tokens: int = 0
    """As the answer's usage tells them."""
    trouble: str = ""

    @property
    def latency_us(self) -> float:
        return (self.over_at - self.sent_at) * 1e6


class _Usage(msgspec.Struct):
    total_tokens: int


class _Answer(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: _Usage


@contextlib.asynccontextmanager
async def caller(key: str, *, keep_alive: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """Open connections without a bound but MAX_OPEN; without `keep_alive` each request has a connection of its own."""
    connector = aiohttp.TCPConnector(limit=0, force_close=not keep_alive)
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        yield session


async def ask(session: aiohttp.ClientSession, gate: int, url: str, body: bytes) -> Asked:
    """Ask for one whole answer."""
    sent_at = answered_at = time.monotonic()
    status, tokens, trouble = 0, 0, ""
    try:
        async with session.post(f"{url}/v1/chat/completions", data=body) as reply:
            answered_at = time.monotonic()
            read = await reply.read()
            if reply.status == 200:
                tokens = msgspec.json.decode(read, type=_Answer).usage.total_tokens
            status = reply.status
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
        trouble = type(error).__name__
    over_at = time.monotonic()
    return Asked(
        gate=gate,
        sent_at=sent_at,
        answered_at=max(answered_at, sent_at) if status else over_at,
        over_at=over_at,
        status=status,
        tokens=tokens,
        trouble=trouble,
    )


class Pacer(Generic[Outcome]):
    """Asks at a steady rate whatever comes back, in turn at each gateway, and keeps the record."""

    def __init__(self, urls: list[str], ask_at: Callable[[int, str], Awaitable[Outcome]], per_s: float) -> None:
        self.record: list[Outcome] = []
        self.skipped = 0
        self.began_at = self.ended_at = 0.0
        self._urls = urls
        self._ask_at = ask_at
        self._per_s = per_s
        self._open: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    async def run(self, seconds: float = float("inf")) -> None:
        """Run until the time is over or `stop`, and then until every answer is there."""
        self.began_at = time.monotonic()
        number = 0
        while not self._stop.is_set() and number / self._per_s < seconds:
            gate = number % len(self._urls)
            if len(self._open) < MAX_OPEN:
                task = asyncio.create_task(self._one(gate))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
            else:
                self.skipped += 1
            number += 1
            with contextlib.suppress(TimeoutError):
                due_in = self.began_at + number / self._per_s - time.monotonic()
                await asyncio.wait_for(self._stop.wait(), max(0.0, due_in))
        self.ended_at = time.monotonic()
        if self._open:
            await asyncio.wait(self._open)

    def stop(self) -> None:
        self._stop.set()

    async def _one(self, gate: int) -> None:
        self.record.append(await self._ask_at(gate, self._urls[gate]))


def chat(model: str, **fields: Any) -> bytes:
    """Return a short request's body."""
    question = [{"role": "user", "content": "When does the ferry to the northern islands leave?"}]
    return msgspec.json.encode({"model": model, "messages": question, **fields})


async def agree(urls: Sequence[str], key: str, mode: str, live: int) -> None:
    """Wait until every worker enforces limits in this manner and counts so many processes. Raises RuntimeError."""
    give_up_at = time.monotonic() + _AGREE_WITHIN_S
    # Whichever worker takes a connection answers; so many of the same mind in a row are all of them, as good as surely.
    enough, in_a_row, last = 6 * live, 0, ""
    async with caller(key, keep_alive=False) as session:
        while in_a_row < enough:
            async with session.get(f"{urls[in_a_row % len(urls)]}/v1/limits") as reply:
                found = await reply.json()
            last = f"{found['mode']}, {found['live_replicas']} live"
            same = (found["mode"], found["live_replicas"]) == (mode, live)
            in_a_row = in_a_row + 1 if same else 0
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"the workers do not agree on {mode}, {live} live; one says {last}")


async def metrics(session: aiohttp.ClientSession, server: Server) -> dict[str, float]:
    """Read every series, those of one name added up."""
    sums: dict[str, float] = {}
    async with session.get(f"{server.url}/metrics") as reply:
        for name, value in _METRIC.findall(await reply.text()):
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


async def add_team(site: Site, team_id: str) -> str:
    """Add one more team; return its key."""
    await _run(site, "teams", "create", team_id)
    key: str = json.loads(await _run(site, "keys", "create", team_id, "--json"))["key"]
    return key


async def add_teams(site: Site, team_ids: Sequence[str]) -> list[str]:
    """Add more teams, without a command for each; return their keys."""
    secret = PEPPER.encode()
    pepper = Pepper(id=pepper_id(secret), secret=secret)
    engine = make_engine(site.database_url)
    try:
        accounts = AccountStore(engine)
        keys = []
        for team_id in team_ids:
            await accounts.create_team(team_id, name=team_id)
            keys.append((await accounts.create_key(team_id, "tests", pepper)).plaintext)
        return keys
    finally:
        await engine.dispose()


async def set_limit(site: Site, scope: str, scope_id: str, **amounts: int) -> None:
    """Run `weighbridge limits set`, for a limit that differs from the configuration."""
    options = [word for name, amount in amounts.items() for word in (f"--{name.replace('_', '-')}", str(amount))]
    await _run(site, "limits", "set", scope, scope_id, *options)


async def _run(site: Site, *arguments: str) -> str:
    done = await site.run(*arguments)
    if done.returncode != 0:
        raise RuntimeError(f"weighbridge {' '.join(arguments[:2])} failed\n{done.stderr[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def maybe_postgres() -> Iterator[Postgres | None]:
    """Start a server of one's own, or yield None on a machine without one: the gateways then share a file of SQLite."""
    binaries = postgres_binaries()
    if binaries is None:
        yield None
        return
    with running_postgres(binaries) as server:
        yield server


def own_folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made
