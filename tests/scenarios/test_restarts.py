"""Restarts under load: streams run throughout, none is cut, and each is booked once."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from cost.ledger.segments import boots
from tests.processes import Server, Site, make_site, oracle, serving, start, until
from tests.running_gateway import model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WORDS = 20


class Load:
    """Callers that stream one answer after the other, each over one connection that it keeps."""

    def __init__(self, key: str, urls: Callable[[], list[str]]) -> None:
        self.whole = 0
        self.turned_away = 0
        self._key = key
        self._urls = urls
        self._enough = False

    @contextlib.asynccontextmanager
    async def running(self, callers: int) -> AsyncIterator[None]:
        """Until the block ends and each has its last answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(self._stream_on(number))
            try:
                yield
            finally:
                self._enough = True

    async def _stream_on(self, number: int) -> None:
        headers = {"authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=1)) as session:
            while not self._enough:
                urls = self._urls()
                number += 1
                await self._stream_one(session, urls[number % len(urls)])

    async def _stream_one(self, session: aiohttp.ClientSession, url: str) -> None:
        body = {"model": "slow", "messages": QUESTION, "stream": True}
        try:
            reply = await session.post(f"{url}/v1/chat/completions", json=body)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            # Nobody listens there any more; no answer had begun, so that another gateway may be asked.
            self.turned_away += 1
            return
        async with reply:
            if reply.status == 503:
                assert (await reply.json())["error"]["code"] == "draining"
                assert reply.headers["connection"] == "close"
                self.turned_away += 1
                return
            assert reply.status == 200, await reply.text()
            said = (await reply.read()).decode()
        assert said.endswith("data: [DONE]\n\n"), said
        assert f" w{WORDS - 1}" in said
        self.whole += 1


async def test_workers_are_replaced_under_load(tmp_path: Path) -> None:
    """SIGUSR2: every stream comes to its end, nobody is turned away, and readiness never ends."""
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("slow", [upstream.deployment(f"tokens-{WORDS}+every-20ms")])])
        async with serving(site, "gateway", "--workers", "2") as server:
            load = Load(site.key, lambda: [server.url])
            async with load.running(4):
                before = set(server.workers())
                server.signal(signal.SIGUSR2)
                async with aiohttp.ClientSession() as session:
                    while before & set(server.workers()):
                        async with session.get(f"{server.url}/readyz") as reply:
                            assert reply.status == 200
                        await asyncio.sleep(0.05)
            assert load.turned_away == 0
            assert await server.stop() == 0
    await _booked_once(site, load)


@pytest.mark.long
async def test_gateways_are_restarted_under_load(tmp_path: Path) -> None:
    """SIGTERM to one of two and a new one in its place, again and again: callers move over, no stream is cut."""
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("slow", [upstream.deployment(f"tokens-{WORDS}+every-20ms")])])
        async with contextlib.AsyncExitStack() as stack:
            pair = await asyncio.gather(*(stack.enter_async_context(serving(site, name)) for name in ("one", "two")))
            load = Load(site.key, lambda: [server.url for server in pair])
            async with load.running(4):
                for turn in range(2):
                    assert await pair[turn].stop() == 0
                    pair[turn] = await stack.enter_async_context(serving(site, f"next-{turn}"))
            for server in pair:
                assert await server.stop() == 0
    await _booked_once(site, load)


async def _booked_once(site: Site, load: Load) -> None:
    """As many answers as there were, each reserved and settled once by what its upstream reported."""
    assert load.whole >= 8
    rows = await site.rows()
    assert Counter(row["entry"] for row in rows) == {"reserve": load.whole, "settle": load.whole}
    assert len({row["request_id"] for row in rows}) == load.whole
    assert {(row["usage_source"], row["flags"]) for row in rows if row["entry"] == "settle"} == {("upstream", "[]")}
    assert boots(site.journal) == []


async def test_a_stop_during_the_start_is_a_clean_one(tmp_path: Path) -> None:
    """However early it comes, nothing was admitted, and the status is 0."""
    site = await make_site(tmp_path, [model("only", [{"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}])])
    servers = [start(site, f"early-{workers}", "--workers", workers) for workers in ("1", "2")]

    async def stopped(server: Server) -> int:
        await server.listening()
        return await server.stop()

    try:
        assert await asyncio.gather(*map(stopped, servers)) == [0, 0]
    finally:
        for server in servers:
            server.kill()
    assert not site.journal.exists() or boots(site.journal) == []


async def test_what_waits_in_a_queue_is_served_before_the_end(tmp_path: Path) -> None:
    """It was admitted before the signal; what runs beyond the drain is ended in words, and both are settled."""
    with oracle(tmp_path) as upstream:
        models = [
            model("slow", [upstream.deployment(f"tokens-{WORDS}+every-25ms")]),
            model("endless", [upstream.deployment("tokens-5000+every-20ms")]),
        ]
        queue = {"targets": ["slow"], "tokens_in_flight": 600}
        site = await make_site(tmp_path, models, server={"drain_s": 4}, queues={"q": queue})
        async with serving(site) as server:
            asked = [asyncio.create_task(_ask(server, site.key, name)) for name in ("slow", "slow", "endless")]
            await until(lambda: sum(line.event == "arrived" for line in upstream.seen()) == 2)
            server.signal(signal.SIGTERM)
            first, second, endless = await asyncio.gather(*asked)
            assert await server.ended() == 0
    assert first.endswith("data: [DONE]\n\n")
    assert second.endswith("data: [DONE]\n\n")
    *_, last = [line for line in endless.splitlines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
    closings = await site.rows("entry != 'reserve'")
    assert Counter((row["entry"], row["usage_source"]) for row in closings) == {
        ("settle", "upstream"): 2,
        ("settle", "estimated"): 1,
    }
    assert boots(site.journal) == []


async def _ask(server: Server, key: str, name: str) -> str:
    body = {"model": name, "messages": QUESTION, "stream": True, "max_tokens": 300}
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as session,
        session.post("/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
        return await reply.text()


@pytest.mark.parametrize(
    ("host", "workers", "replaced"),
    [
        ("127.0.0.1", "2", False),
        pytest.param("127.0.0.1", "1", False, marks=pytest.mark.long),
        pytest.param("127.0.0.1", "2", True, marks=pytest.mark.long),
        pytest.param("::1", "2", False, marks=pytest.mark.long),
        pytest.param("0.0.0.0", "2", False, marks=pytest.mark.long),  # noqa: S104 - every address is what is meant
    ],
)
async def test_whoever_comes_to_a_stopping_gateway_is_refused_and_a_successor_serves(
    tmp_path: Path, host: str, workers: str, replaced: bool
) -> None:
    """While streams of the old one go on, nobody new hangs, and another gateway serves on the same address; also amid a replacement."""
    with oracle(tmp_path) as upstream:
        models = [
            model("endless", [upstream.deployment("tokens-9000+every-20ms")]),
            model("fast", [upstream.deployment("ok")]),
        ]
        site = await make_site(tmp_path, models, server={"host": host, "drain_s": 150})
        async with serving(site, "old", "--workers", workers) as old:
            streams = [asyncio.create_task(_ask(old, site.key, "endless")) for _ in range(4)]
            await until(lambda: sum(line.event == "arrived" for line in upstream.seen()) == len(streams))
            if replaced:
                before = set(old.workers())
                old.signal(signal.SIGUSR2)
                await until(lambda: bool(set(old.workers()) - before))
            old.signal(signal.SIGTERM)
            # Some are told, some are reset as the socket closes; the last one finds nobody there.
            while await _come(old.url, site.key) != "nobody listens":
                pass
            port = old.url.rpartition(":")[2]
            async with serving(site, "successor", "--workers", workers, "--port", port) as successor:
                assert successor.url == old.url
                assert (await _ask(successor, site.key, "fast")).endswith("data: [DONE]\n\n")
                assert old.process.poll() is None
                assert not any(stream.done() for stream in streams)
                for stream in streams:
                    stream.cancel()
                assert await old.ended() == 0
                assert (await _ask(successor, site.key, "fast")).endswith("data: [DONE]\n\n")
                assert await successor.stop() == 0


async def _come(url: str, key: str) -> str:
    """What becomes of somebody who has no connection yet. Raises TimeoutError when nobody tells."""
    address = urlsplit(url)
    body = json.dumps({"model": "fast", "messages": QUESTION}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(10):
        try:
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
        except ConnectionRefusedError:
            return "nobody listens"
        with contextlib.closing(writer):
            try:
                writer.write(head.encode() + body)
                said = (await reader.read()).decode()
            except ConnectionError:
                return "reset"
    if not said:
        return "reset"
    assert "\r\nconnection: close\r\n" in said
    if said.startswith("HTTP/1.1 200 "):
        return "served before the worker had the signal"
    assert said.startswith("HTTP/1.1 503 "), said
    assert '"code":"draining"' in said
    return "told"
