"""Two hosts behind HAProxy under load while each part is killed in turn: what callers get, what is booked, what is let through.

Each host has a folder of its own; they share PostgreSQL (with a standby), Redis and the callers. HAProxy runs with the file that is
shipped. Cases of others, which this holds: requests lost in deploys (mnfst/llm-gateway PR 2326, PostHog PR 73863, langwatch #6941),
a stopping server that closes what a balancer reuses (theopenco/llmgateway PR 1539, aiohttp #9138), a POST sent twice by a balancer
(RunOnFlux/flux-domain-manager PR 153), health that goes with the database (vectorize-io/hindsight #3329), streams that a balancer gathers
(LiteLLM PR 29557, dstack #4269) or cuts off in a silence (LiteLLM #9551, #7518).
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import msgspec
import pytest

from cost.ledger.segments import boots
from testing.scripted.log import LogLine
from tests.haproxy import HaProxy, haproxy_binary, running_haproxy
from tests.postgres import postgres_binaries
from tests.postgres_pair import PostgresPair, postgres_pair
from tests.processes import Oracle, Server, Site, make_site, oracle, start, until
from tests.redis_server import RedisServer, quiet_port, running_redis
from tests.running_gateway import model

QUESTION: Final = [{"role": "user", "content": "What is the capital of France?"}]
WORDS: Final = 20
CALLERS: Final = 6
SETTLED_S: Final = 3.0
"""How long the load goes on between two blows."""
BURST: Final = 20
_LEAVE_S: Final = 3
_DIES_S: Final = 0.5


class Call(msgspec.Struct, frozen=True):
    """What one caller got: `whole`, or what else."""

    step: str
    """What was being done when it was asked."""
    began_at: float
    ended_at: float
    stream: bool
    result: str
    request_id: str


class Load:
    """Callers that ask one thing after the other over a connection that each keeps, half of them for streams."""

    def __init__(self, url: str, key: str) -> None:
        self.step = "calm"
        self.calls: list[Call] = []
        self.passed = 0
        """Requests that the limit let through."""
        self.refused = 0
        self._url = url
        self._headers = {"authorization": f"Bearer {key}"}
        self._enough = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(self._ask_on(stream=number % 2 == 0))
            group.create_task(self._probe_on())
            try:
                yield
            finally:
                self._enough.set()

    def failed(self, step: str) -> list[Call]:
        return [call for call in self.calls if call.step == step and call.result != "whole"]

    async def begin(self, step: str) -> None:
        """Lets the load go on as it is, and then names what comes."""
        await asyncio.sleep(SETTLED_S)
        self.step = step

    async def _ask_on(self, *, stream: bool) -> None:
        async with aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=1)) as session:
            while not self._enough.is_set():
                step, began = self.step, time.monotonic()
                result, request_id = await self._ask(session, stream=stream)
                self.calls.append(Call(step, began, time.monotonic(), stream, result, request_id))

    async def _ask(self, session: aiohttp.ClientSession, *, stream: bool) -> tuple[str, str]:
        body = {"model": "slow", "messages": QUESTION, "stream": stream}
        request_id = ""
        try:
            async with session.post(f"{self._url}/v1/chat/completions", json=body) as reply:
                request_id = reply.headers.get("x-request-id", "")
                said = (await reply.read()).decode()
                if reply.status != 200:
                    return f"{reply.status} {said[:200]}", request_id
        except aiohttp.ClientError as error:
            return type(error).__name__, request_id
        whole = f" w{WORDS - 1}" in said and (not stream or said.endswith("data: [DONE]\n\n"))
        return "whole" if whole else f"error event {said[-200:]}", request_id

    async def _probe_on(self) -> None:
        """Asks for what is limited, twice a second."""
        body = {"model": "limited", "messages": QUESTION}
        async with aiohttp.ClientSession(headers=self._headers) as session:
            while not self._enough.is_set():
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.post(f"{self._url}/v1/chat/completions", json=body) as reply:
                        self.passed += reply.status == 200
                        self.refused += reply.status == 429
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.25):
                        await self._enough.wait()


class Host:
    """A gateway with a folder and a port of its own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.port = quiet_port()
        self._started = 0
        self.server = self.start()

    def start(self) -> Server:
        self._started += 1
        self.server = start(self.site, f"gateway-{self._started}", "--port", str(self.port))
        return self.server

    def kill(self) -> None:
        """Whichever of its servers runs."""
        self.server.kill()


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    """A primary and its standby."""
    binaries = postgres_binaries()
    if binaries is None or not (binaries / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup on this machine")
    with postgres_pair(binaries) as found:
        yield found


async def _hosts(folder: Path, url: str, redis: RedisServer, upstreams: list[Oracle]) -> list[Host]:
    script = f"tokens-{WORDS}+every-20ms"
    models = [
        model("slow", [each.deployment(script, name) for each, name in zip(upstreams, ("a", "b"), strict=True)]),
        model("limited", [upstreams[1].deployment("ok")]),
    ]
    sections: dict[str, Any] = {"server": {"leave_s": _LEAVE_S}, "redis": {"url": "env:TEST_REDIS"}}
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    variables = {"TEST_REDIS": redis.url}
    one = await make_site(folder / "one", models, database_url=url, variables=variables, **sections)
    two = Site(folder / "two", url, one.key, variables)
    two.configure(models, **sections)
    done = await one.run(
        "limits",
        "set",
        "team",
        "team_a",
        "--model",
        "limited",
        "--requests-per-minute",
        "1",
        "--request-burst",
        str(BURST),
    )
    assert done.returncode == 0, done.stderr
    return [Host(one), Host(two)]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_each_part_is_killed_in_turn(tmp_path: Path, pair: PostgresPair) -> None:
    """Only calls that were at a killed host, or streams of a killed upstream, fail; each whole answer is booked once, and the limit holds."""
    haproxy_binary()
    name = (await pair.server().database()).rpartition("/")[2]
    url = f"postgresql://postgres@127.0.0.1:{pair.port},127.0.0.1:{pair.standby_port}/{name}"
    async with contextlib.AsyncExitStack() as stack:
        redis = stack.enter_context(running_redis())
        other = contextlib.ExitStack()
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        stack.push(other)
        upstreams = [other.enter_context(oracle(tmp_path / "a")), stack.enter_context(oracle(tmp_path / "b"))]
        hosts = await _hosts(tmp_path, url, redis, upstreams)
        for host in hosts:
            stack.callback(host.kill)
        await asyncio.gather(*(host.server.ready() for host in hosts))
        balancer = stack.enter_context(running_haproxy(tmp_path, [host.port for host in hosts]))
        await until(lambda: balancer.up() == {"one", "two"})
        load = Load(balancer.url, hosts[0].site.key)
        began = time.monotonic()
        async with load.running():
            moments = await _blows(load, hosts, balancer, pair, redis, other)
        lasted_s = time.monotonic() - began
        for host in hosts:
            assert await host.server.stop() == 0
    told = Counter((call.step, call.result == "whole") for call in load.calls)
    print(f"{told}; of the limited {load.passed} passed and {load.refused} did not in {lasted_s:.0f} s")  # noqa: T201
    _answers(load, moments)
    assert load.passed <= BURST + lasted_s / 60 + 1
    assert load.refused > 0
    await _books(hosts, load, [line for each in upstreams for line in each.seen()])


async def _blows(
    load: Load,
    hosts: list[Host],
    balancer: HaProxy,
    pair: PostgresPair,
    redis: RedisServer,
    other: contextlib.ExitStack,
) -> dict[str, float]:
    """All of them, one after the other, each when the last is over. Returns when the hosts and upstreams were dead."""
    both = {"one", "two"}
    moments = {}
    for host in hosts:
        await load.begin("rolling restart")
        assert await host.server.stop() == 0
        await host.start().ready()
        await until(lambda: balancer.up() == both)
    await load.begin("host killed")
    hosts[0].server.kill()
    moments["host killed"] = time.monotonic()
    await asyncio.sleep(SETTLED_S)
    await hosts[0].start().ready()
    await until(lambda: balancer.up() == both)
    await load.begin("database")
    await pair.is_followed()
    await asyncio.to_thread(pair.fail_over)
    await load.begin("second writer")
    await asyncio.to_thread(pair.come_back)
    alone = await _entries_of(pair.standby_port, hosts[0].site)
    await load.begin("redis")
    redis.kill()
    await asyncio.sleep(SETTLED_S)
    redis.start()
    await load.begin("reload")
    await asyncio.to_thread(balancer.reload)
    await load.begin("upstream killed")
    await asyncio.to_thread(other.close)
    moments["upstream killed"] = time.monotonic()
    await load.begin("end")
    assert await _entries_of(pair.standby_port, hosts[0].site) == alone
    return moments


async def _entries_of(port: int, site: Site) -> int:
    """How many entries the server at a port has in its ledger."""
    connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{port}/{site.database_url.rpartition('/')[2]}")
    try:
        return int(await connection.fetchval("SELECT count(*) FROM ledger_entry"))
    finally:
        await connection.close()


def _answers(load: Load, moments: dict[str, float]) -> None:
    """What failed is what had to."""
    for step in ("calm", "rolling restart", "database", "second writer", "redis", "reload", "end"):
        assert [call for call in load.failed(step) if not _under_way(call, moments)] == []
    failed = [call for call in load.calls if call.result != "whole"]
    assert [call for call in failed if not _under_way(call, moments)] == [], moments
    # Half of the callers, more or less, were at the host, and all streams of one upstream had begun.
    assert len(failed) <= 2 * CALLERS
    of_upstream = [call for call in failed if call.began_at > moments["host killed"] + _DIES_S]
    assert all(call.stream and call.result.startswith("error event") for call in of_upstream)
    assert {call.step for call in load.calls if call.result == "whole"} > {"rolling restart", "host killed", "redis"}


def _under_way(call: Call, moments: dict[str, float]) -> bool:
    """Whether it was while a host or an upstream was killed: the system closes a dead process's sockets a little later."""
    return any(call.began_at <= moment + _DIES_S and moment <= call.ended_at + _DIES_S for moment in moments.values())


async def _books(hosts: list[Host], load: Load, seen: list[LogLine]) -> None:
    """Each whole answer is settled once, as its upstream counted; no reservation is open, and no journal is left."""
    rows = await hosts[0].site.rows()
    closed = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] != "reserve")
    reserved = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] == "reserve")
    assert closed == reserved
    assert set(closed.values()) == {1}
    settled = Counter(
        row["request_id"] for row in rows if row["entry"] == "settle" and row["usage_source"] == "upstream"
    )
    whole = [call.request_id for call in load.calls if call.result == "whole"]
    assert len(set(whole)) == len(whole)
    assert {settled[request_id] for request_id in whole} == {1}
    ended = {line.request_id: line for line in seen if line.event == "ended"}
    for row in rows:
        if row["entry"] == "settle" and row["usage_source"] == "upstream":
            line = ended[row["request_id"]]
            assert (row["input_tokens"], row["output_tokens"]) == (line.prompt_tokens, line.completion_tokens)
    assert all(boots(host.site.journal) == [] for host in hosts)
