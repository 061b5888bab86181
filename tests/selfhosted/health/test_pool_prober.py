"""A pool under watch, over real sockets: what hostile replicas do to what is known of them, and not to the others.

Everything is seen by a process that is told of it, and that sends requests.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from providers.target import DeploymentKind
from selfhosted.config import PoolConfig, WatchConfig
from selfhosted.engines.fetching import Fetched, FetchFailed
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.health.bulletin import Bulletin
from selfhosted.health.judge import JudgeObserver, PoolJudge
from selfhosted.health.messages import AdapterChanged, FromRequests
from selfhosted.health.pool_prober import PoolProber, ScrapeResult, WatchObserver
from selfhosted.replica import Address, EngineStats, Replica, ReplicaState
from tests.selfhosted.engines import pages
from tests.selfhosted.engines.raw_server import Page, RawServer, drip, endless, raw, raw_server, reply, silence

QUICK = WatchConfig(every_s=0.05, timeout_s=1.0, stale_s=0.3, max_suspicion_s=0.2)
IMPATIENT = QUICK.model_copy(update={"timeout_s": 0.2})


class Told(WatchObserver):
    """Remembers what an observer is told."""

    def __init__(self) -> None:
        self.states: dict[str, ReplicaState] = {}
        self.loads: dict[str, EngineStats | None] = {}
        self.scrapes: dict[str, int] = {}
        self.rate: float | None = None

    def set_replica_state(self, pool: str, replica: str, state: ReplicaState) -> None:
        self.states[replica] = state

    def set_replica_load(self, pool: str, replica: str, stats: EngineStats | None) -> None:
        self.loads[replica] = stats

    def count_scrape(self, pool: str, result: ScrapeResult) -> None:
        self.scrapes[result] = self.scrapes.get(result, 0) + 1

    def set_prefix_hit_rate(self, pool: str, rate: float) -> None:
        self.rate = rate

    def forget_replica(self, pool: str, replica: str) -> None:
        del self.states[replica]
        self.loads.pop(replica, None)


class Watching(JudgeObserver):
    """A running watch, what it told, and a process that follows it."""

    def __init__(self, watch: PoolProber, told: Told, judge: PoolJudge) -> None:
        self.watch, self.told, self.judge = watch, told, judge
        self.changes = 0
        self.restarts: list[str] = []
        judge.observer = self

    def changed(self) -> None:
        self.changes += 1

    def restarted(self, name: str) -> None:
        self.restarts.append(name)

    def succeeded(self, name: str, began_at: float = 0.0) -> None:
        self.judge.succeeded(name, began_at, time.monotonic())

    def replica(self, name: str) -> Replica:
        return next(each for each in self.judge.snapshot.replicas if each.name == name)

    def stats(self, name: str) -> EngineStats:
        stats = self.replica(name).stats
        assert stats is not None
        return stats

    async def state(self, name: str, state: ReplicaState) -> Replica:
        await until(lambda: self.replica(name).state == state)
        return self.replica(name)

    async def known(self, name: str) -> EngineStats:
        await until(lambda: self.replica(name).stats is not None)
        return self.stats(name)

    async def told_of_unknown(self, name: str, result: ScrapeResult) -> Replica:
        await until(lambda: bool(self.told.scrapes.get(result)) and self.replica(name).stats is None)
        return self.replica(name)


async def until(true: Callable[[], bool]) -> None:
    """The test's own time limit is the limit."""
    while not true():  # noqa: ASYNC110 - what is waited for is another's state
        await asyncio.sleep(0.005)


def at(url: str, name: str = "a", *, kind: DeploymentKind = "vllm", draining: bool = False) -> Address:
    return Address(pool="pool", name=name, url=url, kind=kind, source="configured", draining=draining)


def told_to(watch: PoolProber) -> Callable[[FromRequests], None]:
    """What a process tells goes to the watch."""

    def tell(message: FromRequests) -> None:
        if isinstance(message, AdapterChanged):
            watch.adapter_changed(message)
        else:
            watch.doubt(message)

    return tell


@contextlib.asynccontextmanager
async def watching(addresses: Sequence[Address], config: WatchConfig = QUICK) -> AsyncIterator[Watching]:
    told, bulletin = Told(), Bulletin()
    pool = PoolConfig(name="pool", targets=("t",), watch=config)
    async with engine_session() as session:
        watch = PoolProber(pool, fetch=HttpFetch(session), publisher=bulletin, observer=told, rng=random.Random(1))
        judge = PoolJudge(pool, clock=time.monotonic, tell=told_to(watch))
        found = Watching(watch, told, judge)
        bulletin.subscribe(judge.hear)
        watch.adopt(addresses)
        running = asyncio.create_task(watch.run())
        try:
            yield found
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def engine(metrics: str | bytes = pages.VLLM) -> contextlib.AbstractAsyncContextManager[RawServer]:
    return raw_server(health=reply(""), metrics=reply(metrics))


async def test_a_replica_that_answers_is_ready_and_its_statistics_are_known() -> None:
    """And a snapshot is one value until something changes."""
    async with engine() as server, watching([at(server.url)]) as w:
        assert w.judge.snapshot.replicas[0].state == "starting"
        await w.state("a", "ready")
        stats = await w.known("a")
        assert (stats.kv_tokens, stats.prefix_hits) == (1_048_576, 2304.0)
        assert w.judge.snapshot is w.judge.snapshot
        assert w.replica("a").why == ""
        assert w.told.states == {"a": "ready"}
        assert w.told.loads["a"] is not None


HOSTILE_METRICS: dict[str, tuple[Page, ScrapeResult]] = {
    "silent": (silence, "slow"),
    "drip": (drip(b"vllm:num_requests_running 0\n"), "slow"),
    "endless": (endless(b"vllm:num_requests_running 0\n" * 1_000), "too_large"),
    "10 MB": (reply(b"# nothing\n" * 1_000_000), "too_large"),
    "NaN": (reply("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n"), "unreadable"),
    "missing names": (reply("vllm:num_requests_running 0\n"), "unreadable"),
    "no names": (reply("up 1\n"), "unreadable"),
    "HTML": (reply("<html>hello</html>\n"), "unreadable"),
    "gzip": (reply(b"\x1f\x8b", headers="content-encoding: gzip\r\n"), "encoded"),
    "redirect": (reply("", 302, "location: /health\r\n"), "status"),
    "404": (reply("", 404), "status"),
    "500 with a page": (reply(pages.VLLM, 500), "status"),
    "cut": (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"), "cut"),
    "reset in the middle": (
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n" + pages.VLLM[:2_000].encode(), reset=True),
        "cut",
    ),
    "cut without a word": (raw(b"HTTP/1.1 200 OK\r\n\r\n" + pages.VLLM[:2_000].encode().rstrip()), "unreadable"),
}


@pytest.mark.parametrize("hostile", HOSTILE_METRICS)
async def test_lying_metrics_are_unknown_and_harm_nobody_else(hostile: str) -> None:
    """The replica is well and serves; its load is unknown, which is told and counted; its neighbour is read on."""
    page, result = HOSTILE_METRICS[hostile]
    async with (
        raw_server(health=reply(""), metrics=page) as bad,
        engine() as good,
        watching([at(bad.url, "bad"), at(good.url, "good")], IMPATIENT if result == "slow" else QUICK) as w,
    ):
        await w.state("bad", "ready")
        replica = await w.told_of_unknown("bad", result)
        assert replica.why.startswith("its statistics cannot be read: ")
        await w.known("good")
        asked = good.asked["/metrics"]
        await until(lambda: good.asked["/metrics"] > asked + 2)
        assert w.replica("good").state == "ready"
        assert w.replica("bad").state == "ready"
        assert good.most_at_once["/metrics"] == 1


@pytest.mark.parametrize(
    "page",
    [silence, drip(b"ok"), reply("", 500), reply("", 302, "location: /metrics\r\n"), raw(b"", reset=True), endless(b"x" * 9_999)],
    ids=["silent", "drip", "500", "redirect", "reset", "endless"],
)  # fmt: skip
async def test_who_does_not_answer_probes_gets_no_work(page: Page) -> None:
    """Though its metrics are there; they are not even asked for. Its neighbour is not delayed."""
    async with (
        raw_server(health=page, metrics=reply(pages.VLLM)) as bad,
        engine() as good,
        watching([at(bad.url, "bad"), at(good.url, "good")], IMPATIENT) as w,
    ):
        await w.state("good", "ready")
        await until(lambda: bad.asked.get("/health", 0) > 1)
        assert w.replica("bad").state == "starting"
        assert w.replica("bad").why
        assert "/metrics" not in bad.asked
        assert [replica.name for replica in w.judge.snapshot.ready] == ["good"]


async def test_a_replica_that_dies_is_suspect_and_then_down_and_comes_back_as_another() -> None:
    """What its cache held is gone with the process."""
    async with engine(pages.VLLM) as server, watching([at(server.url)]) as w:
        await w.known("a")
        w.judge.adapter_changed("a", "sql", loaded=True)
        port = int(server.url.rsplit(":", 1)[1])
        await server.stop()
        await w.state("a", "suspect")
        down = await w.state("a", "down")
        assert down.stats is None
        assert w.told.loads["a"] is None
        server.pages["/metrics"] = reply(pages.VLLM.replace("1.7952531643e+09", "1.7952539999e+09"))
        await server.start(port)
        await w.state("a", "ready")
        await w.known("a")
        assert w.restarts == ["a"]
        assert w.replica("a").adapters == frozenset()


async def test_counters_that_go_back_are_another_process() -> None:
    """Where an engine does not tell when it started."""
    page = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\nllamacpp:prompt_tokens_total {}\n"
    async with engine(page.format(50)) as server, watching([at(server.url, kind="llama.cpp")]) as w:
        await w.known("a")
        server.pages["/metrics"] = reply(page.format(60))
        await until(lambda: w.stats("a").prompt_tokens == 60)
        assert w.restarts == []
        server.pages["/metrics"] = reply(page.format(10))
        await until(lambda: w.stats("a").prompt_tokens == 10)
        assert w.restarts == ["a"]


async def test_statistics_grow_stale() -> None:
    """For a while the last ones are believed; then they are unknown, and the replica serves on."""
    async with engine() as server, watching([at(server.url)]) as w:
        await w.known("a")
        server.pages["/metrics"] = reply("", 503)
        await until(lambda: bool(w.told.scrapes.get("status")))
        assert w.replica("a").stats is not None
        await until(lambda: w.replica("a").stats is None)
        assert "503" in w.replica("a").why
        assert w.replica("a").state == "ready"
        server.pages["/metrics"] = reply(pages.VLLM)
        await w.known("a")


async def test_a_failed_request_costs_no_second_one() -> None:
    """Suspect before `failed` returns, and probed at once although the next probe was far away."""
    slow = WatchConfig(every_s=60, timeout_s=5)
    async with engine() as server, watching([at(server.url)], slow) as w:
        await w.state("a", "ready")
        before = w.changes
        w.judge.failed("a")
        assert w.replica("a").state == "suspect"
        assert w.judge.snapshot.ready == ()
        assert w.changes == before + 1
        await w.state("a", "ready")
        assert server.asked["/health"] == 2


async def test_never_two_probes_at_once() -> None:
    """However often requests fail, and however slowly the replica answers."""

    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        await reply("")(writer)

    async with raw_server(health=slowly, metrics=reply(pages.VLLM)) as server, watching([at(server.url)]) as w:
        await w.state("a", "ready")
        for _ in range(30):
            w.judge.failed("a")
            await asyncio.sleep(0.002)
        await until(lambda: w.replica("a").state == "ready")
        assert server.most_at_once["/health"] == 1


async def test_requests_that_keep_failing_cost_one_each_suspicion() -> None:
    """Its probes are fine; after the second failure one request goes there on trial, and no other beside it."""
    async with engine() as server, watching([at(server.url)]) as w:
        await w.state("a", "ready")
        for _ in range(3):
            w.judge.began("a")
            w.judge.failed("a", began_at=float("inf"))
            assert w.replica("a").state == "suspect"
            await w.state("a", "ready")
        w.judge.began("a")
        assert w.replica("a").state == "suspect"
        w.succeeded("a")
        assert w.replica("a").state == "ready"
        w.judge.began("a")
        assert w.replica("a").state == "ready"


async def test_who_sleeps_gets_no_work() -> None:
    """It answers probes, and would not answer requests."""
    asleep = pages.VLLM.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
    async with engine() as server, watching([at(server.url)]) as w:
        await w.state("a", "ready")
        server.pages["/metrics"] = reply(asleep)
        assert (await w.state("a", "suspect")).why == "it is asleep"
        server.pages["/metrics"] = reply(pages.VLLM)
        await w.state("a", "ready")


async def test_who_drains_is_read_on_and_gets_no_work() -> None:
    """Until it is gone; draining is no other replica."""
    async with engine() as server, watching([at(server.url)]) as w:
        since = (await w.known("a")).at
        w.watch.adopt([at(server.url, draining=True)])
        assert w.replica("a").state == "draining"
        assert w.replica("a").since > since
        assert w.told.states == {"a": "draining"}
        await until(lambda: w.stats("a").at > since)
        assert w.restarts == []
        w.watch.adopt([at(server.url)])
        assert w.replica("a").state == "ready"
        w.watch.adopt([at(server.url, draining=True)])
        await server.stop()
        await w.state("a", "down")


async def test_members_come_and_go() -> None:
    """Who is gone is asked nothing more, and shows no more."""
    async with engine() as one, engine() as two, watching([at(one.url, "b")]) as w:
        await w.known("b")
        changes = w.changes
        w.watch.adopt([at(one.url, "b")])
        assert w.changes == changes
        w.watch.adopt([at(two.url, "a"), at(one.url, "b"), at(one.url, "a")])
        assert [(replica.name, replica.address.url) for replica in w.judge.snapshot.replicas] == [
            ("a", two.url),
            ("b", one.url),
        ]
        assert w.replica("b").state == "ready"
        await w.state("a", "ready")
        w.watch.adopt([at(two.url, "a")])
        assert set(w.told.states) == {"a"}
        asked = one.asked["/health"]
        known = two.asked["/health"]
        await until(lambda: two.asked["/health"] > known + 3)
        assert one.asked["/health"] <= asked + 1
        for act in (w.judge.failed, w.judge.began, w.succeeded):
            act("b")
        w.judge.adapter_changed("b", "x", loaded=True)


async def test_a_name_at_another_address_is_another_replica() -> None:
    """It begins anew, and its cache is forgotten."""
    async with engine() as one, engine() as two, watching([at(one.url)]) as w:
        await w.known("a")
        w.watch.adopt([at(two.url)])
        assert w.replica("a").state == "starting"
        assert w.restarts == ["a"]
        await w.known("a")


async def test_a_pool_of_nobody() -> None:
    """Scaled to zero: an empty snapshot, and no noise."""
    async with watching([]) as w:
        assert w.judge.snapshot.replicas == ()
        assert w.judge.snapshot.ready == ()
        assert w.changes == 0


async def test_gpu_memory_is_read_where_an_exporter_is() -> None:
    """Of the replica's own pod; a slow or lying exporter makes it unknown and nothing else. It is shown no key."""
    async with engine() as server, raw_server(gpus=reply(pages.DCGM)) as exporter:
        config = IMPATIENT.model_copy(update={"gpu_metrics_url": f"{exporter.url}/gpus?of={{host}}"})
        exporter.pages["/gpus?of=127.0.0.1"] = reply(pages.DCGM)
        async with watching([at(server.url, "llama-0")], config) as w:
            await until(
                lambda: (w.replica("llama-0").stats or EngineStats(at=0, running=0, waiting=0)).gpu_memory == 0.75
            )
            exporter.pages["/gpus?of=127.0.0.1"] = silence
            await until(lambda: w.stats("llama-0").gpu_memory is None)
            assert w.replica("llama-0").state == "ready"


async def test_llama_slots_are_asked_for_once() -> None:
    """They are on another page, and change only with the process."""
    async with engine(pages.LLAMA) as server:
        server.pages["/props"] = reply(pages.LLAMA_PROPS)
        async with watching([at(server.url, kind="llama.cpp")]) as w:
            stats = await w.known("a")
            assert (stats.max_running, stats.kv_tokens) == (4, 8_192)
            await until(lambda: server.asked["/metrics"] > 3)
            assert server.asked["/props"] == 1


async def test_metrics_on_a_port_of_their_own() -> None:
    """As Triton has them."""
    async with raw_server(health=reply("")) as server, raw_server(metrics=reply(pages.TRITON)) as metrics:
        port = int(metrics.url.rsplit(":", 1)[1])
        config = QUICK.model_copy(update={"metrics_port": port, "metrics_path": "/metrics"})
        async with watching([at(server.url, kind="tensorrt-llm")], config) as w:
            assert (await w.known("a")).waiting == 2


async def test_the_pools_hit_rate_is_of_what_happened_since() -> None:
    """The counters' growth, not their sums."""
    page = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total {}\n"
    async with engine(page.format(1_000, 0)) as server, watching([at(server.url)]) as w:
        await w.known("a")
        assert w.watch.prefix_hit_rate is None
        server.pages["/metrics"] = reply(page.format(1_100, 75))
        await until(lambda: w.told.rate is not None)
        assert w.told.rate == pytest.approx(0.75)
        assert w.watch.prefix_hit_rate == pytest.approx(0.75)


async def test_adapters_show_in_the_snapshot() -> None:
    """Of every process: as whoever loads them says, and what was seen before that says nothing of it."""
    async with engine() as server, watching([at(server.url)]) as w:
        before = time.monotonic()
        w.judge.adapter_changed("a", "sql", loaded=True)
        w.watch.set_adapters("a", frozenset(), before)
        assert w.replica("a").adapters == w.watch.snapshot.replicas[0].adapters == {"sql"}
        w.watch.set_adapters("a", frozenset({"law"}), time.monotonic())
        assert w.replica("a").adapters == {"law"}
        w.judge.adapter_changed("a", "law", loaded=False)
        assert w.replica("a").adapters == w.watch.snapshot.replicas[0].adapters == frozenset()


class Scripted:
    """A Fetch without sockets; the clock moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.health: Fetched | FetchFailed = Fetched(200, b"")
        self.takes_s = 0.0
        self.probes = 0

    def clock(self) -> float:
        return self.now

    async def __call__(self, url: str, *, timeout_s: float, max_bytes: int, with_key: bool = True) -> Fetched:
        await asyncio.sleep(0)
        if url.endswith("/metrics"):
            return Fetched(200, pages.VLLM.encode())
        self.probes += 1
        self.now += self.takes_s
        if isinstance(self.health, FetchFailed):
            raise self.health
        return self.health


@contextlib.asynccontextmanager
async def scripted(
    fetch: Scripted, names: Sequence[str], heard: Callable[[object], None] = lambda _message: None
) -> AsyncIterator[PoolProber]:
    bulletin = Bulletin()
    bulletin.subscribe(heard)
    watch = PoolProber(
        PoolConfig(name="pool", targets=("t",), watch=WatchConfig(every_s=0.05, timeout_s=0.8)),
        fetch=fetch,
        publisher=bulletin,
        clock=fetch.clock,
    )
    watch.adopt([at(f"http://{name}", name) for name in names])
    running = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_our_own_standstill_is_not_held_against_a_replica() -> None:
    """A timeout that was noticed much too late says that this process was not looking."""
    fetch = Scripted()
    async with scripted(fetch, ["a"]) as watch:
        await until(lambda: len(watch.snapshot.ready) == 1)
        fetch.health, fetch.takes_s = FetchFailed("slow", "too slow"), 5.0
        seen = fetch.probes
        await until(lambda: fetch.probes > seen + 5)
        assert watch.snapshot.replicas[0].state == "ready"
        fetch.takes_s = 0.8
        await until(lambda: watch.snapshot.replicas[0].state == "down")


async def test_an_error_of_ours_does_not_end_the_watching(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next round follows."""
    fetch, calls = Scripted(), [0]

    def heard(_message: object) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("whoever is told has a bug")

    async with scripted(fetch, ["a"], heard) as watch:
        await until(lambda: len(watch.snapshot.ready) == 1)
        seen = fetch.probes
        await until(lambda: fetch.probes > seen + 3)
    assert "a round of watching a of pool pool failed" in caplog.text


async def test_sixty_four_replicas_are_staggered_and_nothing_is_left_over() -> None:
    """Each on its own; when the watch ends so do its tasks."""
    before = asyncio.all_tasks()
    fetch = Scripted()
    names = [f"r{number:02}" for number in range(64)]
    async with scripted(fetch, names) as watch:
        await until(lambda: len(watch.snapshot.ready) == 64)
        assert [replica.name for replica in watch.snapshot.replicas] == names
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("url", ["http://[::1", "http://", "nonsense", "http://256.0.0.1:1"])
async def test_an_address_that_is_none(url: str) -> None:
    """Never ready, and no error of ours."""
    config = QUICK.model_copy(update={"metrics_port": 9, "gpu_metrics_url": "http://{host}:1/x"})
    async with watching([at(url)], config) as w:
        await until(lambda: "HTTP" in w.replica("a").why or "reached" in w.replica("a").why)
        assert w.replica("a").state == "starting"
