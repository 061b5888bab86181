"""LoRA adapters at replicas: loading on demand, once; making room; and believing the engines about what they have."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.config import AdapterConfig, PoolConfig
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.lora.adapters import (
    AdapterObserver,
    AdapterRefused,
    Adapters,
    AdapterUnavailable,
    AdapterUnknown,
    AdapterUnreachable,
    LoadResult,
    least_used,
)
from selfhosted.lora.lora_poll import LoraPoll
from selfhosted.replica import Address, EngineStats, PoolSnapshot, Replica

NAMES = ("sql", "law", "art", "new")
POOL = PoolConfig(
    name="llama",
    targets=("llama-3-70b",),
    adapters=tuple(AdapterConfig(name=name, target=f"llama-{name}", path=f"/adapters/{name}") for name in NAMES),
)


class Engine:
    """vLLM's part of it: what is loaded, and what it was told."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.told: list[str] = []
        self.keys: set[str | None] = set()
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.models_asked = asyncio.Event()
        self.models_gate = asyncio.Event()
        self.models_gate.set()
        app = web.Application()
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_get("/v1/models", self._models)
        self.server = TestServer(app)

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.keys.add(request.headers.get("authorization"))
        self.told.append(f"load {body['lora_name']} {body['lora_path']}")
        await self.gate.wait()
        if body["lora_name"] in self.answers:
            status, content = self.answers[body["lora_name"]]
            return web.Response(status=status, body=content, content_type="application/json")
        if body["lora_name"] in self.loaded:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded. If you want to load ..."
            return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        self.loaded.append(body["lora_name"])
        return web.Response(text="Success")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.told.append(f"unload {name}")
        if name not in self.loaded:
            return web.json_response({"error": {"message": "not found", "code": 404}}, status=404)
        self.loaded.remove(name)
        return web.Response(text="Success")

    async def _models(self, _request: web.Request) -> web.Response:
        data = [{"id": name} for name in ("tiny", *self.loaded)]
        self.models_asked.set()
        await self.models_gate.wait()
        return web.json_response({"object": "list", "data": data})


class Known(AdapterObserver):
    """The replicas, as a watch would know them; and what an observer is told."""

    def __init__(self, url: str) -> None:
        self.replica = Replica(
            address=Address(pool="llama", name="a", url=url, kind="vllm", source="configured"), state="ready", since=0.0
        )
        self.counted: list[LoadResult] = []
        self.known_at = float("-inf")
        self.now = [1_000.0]

    @property
    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(pool="llama", at=0.0, replicas=(self.replica,))

    def clock(self) -> float:
        return self.now[0]

    def adapter_changed(self, name: str, adapter: str, *, loaded: bool) -> None:
        known, one = self.replica.adapters, frozenset({adapter})
        self.now[0] += 0.001
        self.set_adapters(name, known | one if loaded else known - one, self.now[0])

    def set_adapters(self, name: str, adapters: frozenset[str], at: float) -> None:
        if name == "a" and at > self.known_at:
            self.replica = msgspec.structs.replace(self.replica, adapters=adapters)
            self.known_at = at

    def count_adapter_load(self, pool: str, result: LoadResult) -> None:
        self.counted.append(result)

    def has_places(self, places: int, busy: frozenset[str] = frozenset()) -> None:
        stats = EngineStats(at=0.0, running=0, waiting=0, adapters=busy, max_adapters=places)
        self.replica = msgspec.structs.replace(self.replica, stats=stats)


class Site:
    """One engine, what is known of it, and the adapters under test, on a clock that the test moves."""

    def __init__(self, engine: Engine, known: Known, adapters: Adapters, look: LoraPoll) -> None:
        self.engine, self.known, self.adapters, self.look = engine, known, adapters, look
        self.now = known.now

    async def ensure(self, *names: str) -> None:
        for name in names:
            self.now[0] += 1.0
            await self.adapters.ensure(self.known.replica, name)


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    engine = Engine()
    async with engine.server, engine_session() as session:
        known = Known(str(engine.server.make_url("")))
        adapters = Adapters(
            POOL, fetch=HttpFetch(session, lambda: "made-up"), residency=known, observer=known, clock=known.clock
        )
        look = LoraPoll(POOL, session=session, api_key=lambda: "made-up", watch=known, clock=known.clock, every_s=0.01)
        yield Site(engine, known, adapters, look)
        await adapters.aclose()


async def until_adapters(known: Known, adapters: set[str]) -> None:
    """The test's own time limit is the limit."""
    while known.replica.adapters != frozenset(adapters):  # noqa: ASYNC110 - it has no events
        await asyncio.sleep(0.005)


async def test_a_missing_adapter_is_loaded_once() -> None:
    """From its configured path, with the engine's key; a second request finds it."""
    async with site() as s:
        await s.ensure("sql", "sql")
        assert s.engine.told == ["load sql /adapters/sql"]
        assert s.engine.keys == {"Bearer made-up"}
        assert s.known.replica.adapters == {"sql"}
        assert s.known.counted == ["loaded"]


async def test_many_who_wait_for_it_are_one_load_and_one_who_leaves_ends_nothing() -> None:
    """A caller that hangs up takes the adapter from nobody."""
    async with site() as s:
        s.engine.gate.clear()
        waiting = [asyncio.create_task(s.adapters.ensure(s.known.replica, "sql")) for _ in range(10)]
        while not s.engine.told:  # noqa: ASYNC110 - it has no events
            await asyncio.sleep(0.005)
        waiting[0].cancel()
        s.engine.gate.set()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert done[1:] == [None] * 9
        assert s.engine.told == ["load sql /adapters/sql"]


async def test_one_that_another_process_loaded_is_as_good() -> None:
    """The engine says that it has it already."""
    async with site() as s:
        s.engine.loaded = ["sql"]
        await s.ensure("sql")
        assert s.known.replica.adapters == {"sql"}


async def test_what_was_idle_longest_makes_room() -> None:
    """Not what was used lately, and not what runs in the engine now."""
    async with site() as s:
        s.known.has_places(2)
        await s.ensure("sql", "law", "sql")
        s.now[0] += 60.0
        await s.ensure("art")
        assert s.engine.loaded == ["sql", "art"]
        assert s.known.replica.adapters == {"sql", "art"}
        s.now[0] += 60.0
        s.known.has_places(2, busy=frozenset({"sql"}))
        await s.ensure("law")
        assert s.engine.loaded == ["sql", "law"]
        assert s.known.counted == ["loaded", "loaded", "unloaded", "loaded", "unloaded", "loaded"]


async def test_where_nothing_is_idle_nothing_is_unloaded() -> None:
    """The engine swaps by itself; nobody's request is sent to an adapter that was just taken away."""
    async with site() as s:
        s.known.has_places(1)
        await s.ensure("sql", "law")
        assert s.engine.loaded == ["sql", "law"]
        assert s.known.counted == ["loaded", "busy", "loaded"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((404, b'{"detail":"Not Found"}'), AdapterRefused),
        ((404, b'{"error":{"message":"No adapter found for /x"}}'), AdapterRefused),
        ((500, b"boom"), AdapterRefused),
        ((502, b"<html>" * 100), AdapterRefused),
        ((200, b"x" * 2_000_000), AdapterUnreachable),
    ],
    ids=["not enabled", "no such path", "500", "HTML", "endless"],
)
async def test_what_cannot_be_loaded_is_said_and_not_tried_again_at_once(
    answer: tuple[int, bytes], error: type[AdapterUnavailable]
) -> None:
    """Another replica may have it; the replica itself is well, so its breaker does not count it."""
    async with site() as s:
        s.engine.answers["sql"] = answer
        for _ in range(3):
            with pytest.raises(error) as caught:
                await s.ensure("sql")
        assert caught.value.deployment_id == "llama-sql/a"
        assert not caught.value.gateway_failure
        assert "enable-lora" not in caught.value.public
        assert len(s.engine.told) == 1
        assert s.known.counted == ["failed"]
        del s.engine.answers["sql"]
        s.now[0] += 60.0
        await s.ensure("sql")
        assert s.engine.loaded == ["sql"]


async def test_an_engine_that_is_gone() -> None:
    """An error of its own kind."""
    async with site() as s:
        await s.engine.server.close()
        with pytest.raises(AdapterUnreachable):
            await s.ensure("sql")


async def test_an_adapter_that_nobody_configured() -> None:
    """Nothing is asked of the engine, which would otherwise load any path."""
    async with site() as s:
        with pytest.raises(AdapterUnknown):
            await s.ensure("theirs")
        assert s.engine.told == []


async def test_the_engines_are_believed_about_what_they_have() -> None:
    """Others load and unload too; models that are no adapters of the pool do not count."""
    async with site() as s:
        running = asyncio.create_task(s.look.run())
        s.engine.loaded = ["law", "stranger"]
        await until_adapters(s.known, {"law"})
        s.engine.loaded = []
        s.now[0] += 1.0
        await until_adapters(s.known, set())
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_answer_from_before_a_load_is_not_believed() -> None:
    """The engine was asked, then the adapter was loaded, then the old answer came."""
    async with site() as s:
        s.engine.models_gate.clear()
        looking = asyncio.create_task(s.look.look())
        await s.engine.models_asked.wait()
        await s.ensure("sql")
        s.engine.models_gate.set()
        await looking
        assert s.known.replica.adapters == {"sql"}


async def test_a_load_that_is_under_way_ends_with_the_process() -> None:
    """Nothing waits for an engine that does not answer."""
    async with site() as s:
        s.engine.gate.clear()
        waiting = asyncio.create_task(s.ensure("sql"))
        while not s.engine.told:  # noqa: ASYNC110 - it has no events
            await asyncio.sleep(0.005)
        await s.adapters.aclose()
        s.engine.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_an_adapter_that_the_engine_denies_is_loaded_again() -> None:
    """Another process unloaded it a moment ago."""
    async with site() as s:
        await s.ensure("sql")
        s.engine.loaded = []
        s.adapters.missing("a", "sql")
        await s.ensure("sql")
        assert s.engine.loaded == ["sql"]
        s.adapters.missing("nobody", "sql")


@given(
    st.frozensets(st.sampled_from(NAMES)),
    st.dictionaries(st.sampled_from(NAMES), st.floats(0, 100)),
    st.floats(0, 100),
)
def test_the_least_used_is_idle_and_the_oldest(
    adapters: frozenset[str], used_at: dict[str, float], idle_since: float
) -> None:
    """Whoever is chosen was used no later than any other that could have been."""
    victim = least_used(adapters, used_at, idle_since=idle_since)
    idle = {name for name in adapters if used_at.get(name, -1.0) <= idle_since}
    assert (victim is None) == (not idle)
    if victim is not None:
        assert victim in idle
        assert all(used_at.get(victim, -1.0) <= used_at.get(name, -1.0) for name in idle)
