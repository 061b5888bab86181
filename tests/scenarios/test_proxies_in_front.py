"""Streams, hang-ups, sockets and uploads through HAProxy and nginx with the files that are shipped: the same as without them.

Cases of others: streams that a proxy gathers (LiteLLM PR 29557) or ends in a silence before the first token (LiteLLM #34819, PR 37322),
callers whose hang-up never arrives, so that the upstream writes on (haproxy #1505, sglang PR 40391), sockets cut off as idle
(nextcloud/HaRP PR 115), uploads refused early whose answer is lost (tinyproxy #79, haproxy #3316), kept connections that the server
closes first (phalanx PR 5103, woogles PR 1816).
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, get_args

import aiohttp
import msgspec
import pytest

from gateway.configuration.gateway_config import ServerConfig
from providers.target import Tier
from proxy.http.connection import ConnectionLimits
from proxy.shared.deadline import MOST_TIMEOUT_MS, DeadlinesSection
from tests.haproxy import SHIPPED, HaProxy, running_haproxy
from tests.nginx import SHIPPED as NGINX
from tests.nginx import running_nginx
from tests.postgres import Postgres
from tests.processes import Site, make_site, oracle, start, until
from tests.redis_server import quiet_port
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_open_responses import socket_of

QUESTION: Final = [{"role": "user", "content": "What is the capital of France?"}]
SCRIPTS: Final = {"ok": "ok", "hangs": "hang", "begins": "hang-3+tokens-9", "paced": "tokens-40+every-20ms"}
_PROXIES: Final = ("haproxy", "nginx")
_WAYS: Final = ("direct", *_PROXIES)
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


@contextlib.asynccontextmanager
async def reached(folder: Path, upstream: Upstream, way: str, **sections: Any) -> AsyncIterator[Running]:
    """A gateway whose address is a proxy's where that is the way; each of SCRIPTS is a model."""
    models = [model(name, [upstream.deployment(script)]) for name, script in SCRIPTS.items()]
    async with running_gateway(folder, models, **sections) as gateway:
        if way == "direct":
            yield gateway
            return
        hosts = [int(gateway.url.rpartition(":")[2]), quiet_port()]
        if way == "nginx":
            with running_nginx(folder, hosts) as url:
                yield msgspec.structs.replace(gateway, url=url)
            return
        with running_haproxy(folder, hosts) as balancer:
            await until(lambda: balancer.up() == {"one"})
            yield msgspec.structs.replace(gateway, url=balancer.url)


@contextlib.asynccontextmanager
async def asked(gateway: Running, script: str, **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"authorization": f"Bearer {gateway.key}"}
    body = {"model": script, "messages": QUESTION, **fields}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{gateway.base_url}/chat/completions", json=body) as reply,
    ):
        yield reply


async def _booked(gateway: Running, upstream: Upstream) -> dict[str, Any]:
    """The one entry that settled a call, once there is one and the upstream's work is over."""
    await until(lambda: bool(upstream.over()))

    async def is_booked() -> bool:
        return len(await gateway.rows("entry = 'settle'")) == 1

    await until(is_booked)
    (row,) = await gateway.rows("entry = 'settle'")
    return row


def _as_booked(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("status", "flags", "usage_source", "input_tokens", "output_tokens"))


@pytest.mark.parametrize("way", _PROXIES)
async def test_no_token_is_held_back(tmp_path: Path, upstream: Upstream, way: str) -> None:
    """Each that the upstream has sent is there while it sends no more; and a stream is whole, with its own pace."""
    async with reached(tmp_path, upstream, way) as gateway:
        async with asyncio.timeout(30), asked(gateway, "begins", stream=True) as reply:
            told = b""
            while b" w1" not in told:
                told += await reply.content.readany()
        async with asked(gateway, "paced", stream=True) as reply:
            assert (await reply.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
@pytest.mark.parametrize("way", _PROXIES)
async def test_a_silence_before_the_first_token_is_broken(
    tmp_path: Path, upstream: Upstream, path: str, way: str
) -> None:
    """By lines without a meaning, which pass at once."""
    async with reached(tmp_path, upstream, way, server={"ping_after_s": 0.2}) as gateway:
        headers = {"authorization": f"Bearer {gateway.key}"}
        body = {"model": "hangs", "stream": True, "messages": QUESTION} | (
            {"input": "hi"} if path == "responses" else {}
        )
        if path == "responses":
            del body["messages"]
        async with (
            asyncio.timeout(30),
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{gateway.base_url}/{path}", json=body) as reply,
        ):
            assert reply.status == 200
            for _ in range(2):
                assert await reply.content.readany()


async def _hung_up(folder: Path, upstream: Upstream, way: str, script: str, *, stream: bool) -> tuple[Any, ...]:
    """What is booked of a call whose caller leaves while the upstream is silent."""
    upstream.log.clear()
    async with reached(folder, upstream, way) as gateway:
        has_token = asyncio.Event()

        async def ask() -> None:
            async with asked(gateway, script, stream=stream) as reply:
                await reply.content.readuntil(b" w1")
                has_token.set()
                await asyncio.Event().wait()

        asking = asyncio.create_task(ask())
        await until(lambda: bool(upstream.arrived()))
        if script == "begins":
            await has_token.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        row = await _booked(gateway, upstream)
        (over,) = upstream.over()
        assert over.event == "cut"
        return _as_booked(row)


@pytest.mark.parametrize(
    ("script", "stream"),
    [("hangs", False), ("hangs", True), ("begins", True)],
    ids=["whole answer", "before the first token", "amid the stream"],
)
async def test_a_hang_up_reaches_the_upstream(tmp_path: Path, upstream: Upstream, script: str, stream: bool) -> None:
    """It is ended, and booked as at a direct connection."""
    for way in _WAYS:
        (tmp_path / way).mkdir()
    direct, *proxied = [await _hung_up(tmp_path / way, upstream, way, script, stream=stream) for way in _WAYS]
    assert proxied == [direct] * len(_PROXIES)
    assert direct[0] == 499
    assert "caller_gone" in direct[1]


@pytest.mark.parametrize("way", _PROXIES)
async def test_responses_over_a_socket(tmp_path: Path, upstream: Upstream, way: str) -> None:
    """Turns on one socket, and a caller that leaves amid one."""
    async with reached(tmp_path, upstream, way) as gateway:
        async with socket_of(gateway) as socket:
            for _ in range(2):
                assert (await socket.turn(model="ok", input="hi"))["status"] == "completed"
        upstream.log.clear()
        async with socket_of(gateway) as socket:
            await socket.raw.send_json({"type": "response.create", "model": "begins", "input": "hi"})
            while (await socket.raw.receive_json(timeout=30))["type"] != "response.output_text.delta":
                pass
        await until(lambda: bool(upstream.over()))

        async def is_booked() -> bool:
            return len(await gateway.rows("entry = 'settle'")) == 3

        await until(is_booked)
        *_, row = await gateway.rows("entry = 'settle'")
        assert "caller_gone" in row["flags"]


async def _said(url: str, head: bytes, *pieces: bytes, waits: bool = True) -> tuple[bytes, bytes]:
    """What is answered to a head, where that is waited for, and to the body behind it."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(30):
            writer.write(head)
            first = await reader.readuntil(b"\r\n\r\n") if waits else b""
            for piece in pieces:
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
            status = await reader.readuntil(b"\r\n\r\n") if pieces else b""
            return first, status
    finally:
        writer.close()


def _head(gateway: Running, length: int, *fields: str, key: str | None = None) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: gateway",
        f"authorization: Bearer {key or gateway.key}",
        "content-type: application/json",
        f"content-length: {length}",
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("way", _WAYS)
async def test_uploads(tmp_path: Path, upstream: Upstream, way: str) -> None:
    """A body of many megabytes arrives; one is sent for by `100-continue`, unless it would be refused; and a refusal that comes while the body
    is still sent reaches its caller.
    """
    body = json.dumps({"model": "ok", "messages": QUESTION, "metadata": {"note": "x"}, "user": "u"}).encode()
    long = json.dumps({"model": "ok", "messages": [{"role": "user", "content": "a " * 8_000_000}]}).encode()
    async with reached(tmp_path, upstream, way) as gateway:
        expects = _head(gateway, len(body), "expect: 100-continue")
        first, status = await _said(gateway.url, expects, body)
        assert first.startswith(b"HTTP/1.1 100 ")
        assert status.startswith(b"HTTP/1.1 200 ")
        wrong = _head(gateway, len(body), "expect: 100-continue", key="wb-no-key-at-all")
        first, _ = await _said(gateway.url, wrong)
        # nginx sends for the body by itself.
        assert first.startswith(b"HTTP/1.1 100 " if way == "nginx" else b"HTTP/1.1 401 ")
        pieces = [long[at : at + 65_536] for at in range(0, len(long), 65_536)]
        _, status = await _said(gateway.url, _head(gateway, len(long)), *pieces, waits=False)
        # It is larger than the model's context, and was read to its end.
        assert status.startswith(b"HTTP/1.1 400 "), status
        too_large = [b"x" * 65_536] * 400
        _, status = await _said(gateway.url, _head(gateway, 400 * 65_536), *too_large, waits=False)
        assert status.startswith(b"HTTP/1.1 413 "), status


def _durations() -> dict[str, float]:
    """The durations of the shipped file, by their names."""
    found = re.findall(r"^ +((?:timeout )?[a-z-]+) (\d+)(ms|s|m|h)$", SHIPPED.read_text(), re.MULTILINE)
    return {name: int(number) * _UNITS[unit] for name, number, unit in found}


def test_haproxy_is_more_patient_than_the_gateway() -> None:
    """So that it is the gateway that answers, and HAProxy that closes a kept connection."""
    file, ours, server = _durations(), ConnectionLimits(), ServerConfig()
    longest_s = MOST_TIMEOUT_MS / 1000
    for tier in get_args(Tier):
        assert longest_s >= (DeadlinesSection().of(tier).answer_s or 0)
    for side in ("timeout client", "timeout server"):
        assert file[side] > longest_s
        assert file[side] > server.ping_after_s * 2
        assert file[side] > server.body_timeout_s
    assert file["timeout tunnel"] >= 3_600
    assert file["timeout http-request"] > ours.head_timeout_s
    assert file["timeout http-keep-alive"] < ours.keep_alive_s
    assert file["hard-stop-after"] > server.drain_s


def test_nginx_is_more_patient_than_the_gateway() -> None:
    """So that it is the gateway that answers, and nginx that closes a kept connection."""
    told = re.findall(r"^ +([a-z_]+) (\d+)s;$", NGINX.read_text(), re.MULTILINE)
    file, ours, longest_s = {name: int(number) for name, number in told}, ConnectionLimits(), MOST_TIMEOUT_MS / 1000
    assert min(file["proxy_read_timeout"], file["proxy_send_timeout"]) > longest_s
    assert file["client_header_timeout"] > ours.head_timeout_s
    assert file["keepalive_timeout"] < ours.keep_alive_s


@pytest.fixture
def balanced(tmp_path: Path) -> Path:
    """A folder with one for each host."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.long
async def test_a_host_that_drains_ends_its_streams(balanced: Path, postgres: Postgres) -> None:
    """Those that it has go on to their end, a socket gets its turn's, and whoever comes meanwhile is at the other host."""
    url = await postgres.database()
    with oracle(balanced) as upstream:
        models = [
            model("long", [upstream.deployment("tokens-120+every-50ms")]),
            model("ok", [upstream.deployment("ok")]),
        ]
        section: dict[str, Any] = {"server": {"leave_s": 3}}
        one = await make_site(balanced / "one", models, database_url=url, **section)
        two = Site(balanced / "two", url, one.key, {})
        two.configure(models, **section)
        ports = [quiet_port(), quiet_port()]
        servers = [start(site, "gateway", "--port", str(port)) for site, port in zip((one, two), ports, strict=True)]
        try:
            for server in servers:
                await server.ready()
            with running_haproxy(balanced, ports) as balancer:
                await until(lambda: balancer.up() == {"one", "two"})
                await _drains(one, servers[0], balancer)
        finally:
            for server in servers:
                server.kill()
        rows = await one.rows("entry = 'settle'")
        assert {row["status"] for row in rows} == {200}


async def _drains(site: Site, stopping: Any, balancer: HaProxy) -> None:
    headers = {"authorization": f"Bearer {site.key}"}
    url = f"{balancer.url}/v1/chat/completions"

    async def stream(session: aiohttp.ClientSession) -> str:
        async with session.post(url, json={"model": "long", "messages": QUESTION, "stream": True}) as reply:
            return await reply.text()

    async with aiohttp.ClientSession(headers=headers) as session:
        streams = [asyncio.create_task(stream(session)) for _ in range(6)]
        await asyncio.sleep(1)
        ending = asyncio.create_task(stopping.stop())
        while not ending.done():
            async with session.post(url, json={"model": "ok", "messages": QUESTION}) as reply:
                assert reply.status == 200, await reply.text()
                await reply.read()
            await asyncio.sleep(0.02)
        assert await ending == 0
        for told in await asyncio.gather(*streams):
            assert " w119" in told
            assert told.endswith("data: [DONE]\n\n")
