"""Health, readiness and metrics over a socket."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cost.ledger.segments import encode_line, segment_path
from tests.cost.entries import reserve
from tests.running_gateway import Running, model, running_gateway

SCRIPTED: Any = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]


async def get(gateway: Running, path: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(gateway.url + path, headers=headers) as reply:
        assert reply.headers["x-request-id"].startswith("req_")
        return reply.status, await reply.text()


async def test_liveness_and_readiness_answer_without_a_key(tmp_path: Path) -> None:
    """Under both spellings."""
    async with running_gateway(tmp_path, [model("m", SCRIPTED)]) as gateway:
        for path in ("/healthz", "/health", "/readyz", "/ready", "/readyz/control-plane"):
            assert (await get(gateway, path))[0] == 200


async def test_readiness_turns_false_when_draining(tmp_path: Path) -> None:
    """A load balancer is told before connections close."""
    async with running_gateway(tmp_path, [model("m", SCRIPTED)]) as gateway:
        gateway.begin_drain()
        status, body = await get(gateway, "/readyz")
        assert (status, '"accepting":false' in body) == (503, True)
        assert (await get(gateway, "/healthz"))[0] == 200


async def test_readiness_turns_false_while_requests_are_still_served(tmp_path: Path) -> None:
    """Balancers go elsewhere before anybody is refused."""
    async with running_gateway(tmp_path, [model("m", SCRIPTED)]) as gateway:
        gateway.data.begin_leave()
        status, body = await get(gateway, "/readyz")
        assert (status, '"accepting":false' in body) == (503, True)
        assert (gateway.live.line.leaving, gateway.live.line.draining) == (True, False)


async def test_readiness_tells_what_waits_in_journals(tmp_path: Path) -> None:
    """Of every process of the host; the gateway serves all the same."""
    async with running_gateway(tmp_path, [model("m", SCRIPTED)], cost={"drain_interval_s": 60}) as gateway:
        told = json.loads((await get(gateway, "/readyz"))[1])
        assert (told["checks"]["journals"], told["journals"]) == (True, {"processes": 0, "waiting": 0, "oldest_s": 0.0})
        segment_path(tmp_path / "journal", "other", 0).write_bytes(encode_line(reserve()))
        async with asyncio.timeout(20):
            # What was counted is good for a second.
            while not told["journals"]["waiting"]:
                await asyncio.sleep(0.1)
                status, body = await get(gateway, "/readyz")
                told = json.loads(body)
        assert (status, told["status"], told["checks"]["journals"]) == (200, "ready", False)
        assert (told["journals"]["processes"], told["journals"]["waiting"]) == (1, 1)
        assert told["journals"]["oldest_s"] > 60


async def test_metrics_are_for_this_machine_unless_a_token_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody by default; where this machine may, a request that a proxy passed on is not local; with a token only the token
    counts.
    """
    (tmp_path / "closed").mkdir()
    closed = {"metrics_local": False}
    async with running_gateway(tmp_path / "closed", [model("m", SCRIPTED)], telemetry=closed) as gateway:
        status, body = await get(gateway, "/metrics")
        assert (status, "telemetry.metrics_token" in body) == (403, True)
    async with running_gateway(tmp_path, [model("m", SCRIPTED)]) as gateway:
        status, body = await get(gateway, "/metrics")
        assert (status, "weighbridge_requests_total" in body) == (200, True)
        for name in (
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-forwarded-server",
            "forwarded",
            "via",
        ):
            assert (await get(gateway, "/metrics", **{name: "10.1.2.3"}))[0] == 403
    monkeypatch.setenv("SCRAPE_TOKEN", "s3cret")
    (tmp_path / "two").mkdir()
    guarded = {"metrics_token": "env:SCRAPE_TOKEN"}
    async with running_gateway(tmp_path / "two", [model("m", SCRIPTED)], telemetry=guarded) as gateway:
        assert (await get(gateway, "/metrics"))[0] == 403
        assert (await get(gateway, "/metrics", authorization="Bearer wrong"))[0] == 403
        assert (await get(gateway, "/metrics", authorization="Bearer s3cret"))[0] == 200


async def test_metrics_may_have_a_listener_of_their_own(tmp_path: Path) -> None:
    """It serves them and nothing else, also to whom a proxy passed on; the public port stays closed."""
    with socket.socket() as kept:
        # Bound and never listening: nobody else gets the port, and no connection comes here.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{kept.getsockname()[1]}"
        telemetry = {"metrics_local": False, "metrics_listen": listen}
        async with running_gateway(tmp_path, [model("m", SCRIPTED)], telemetry=telemetry) as gateway:
            assert (await get(gateway, "/metrics"))[0] == 403
            async with aiohttp.ClientSession(f"http://{listen}", headers={"x-forwarded-for": "10.1.2.3"}) as scraper:
                reply = await scraper.get("/metrics")
                assert (reply.status, "weighbridge_requests_total" in await reply.text()) == (200, True)
                for path in ("/", "/dashboard", "/readyz", "/v1/models"):
                    assert (await scraper.get(path)).status == 404


async def test_a_listener_of_metrics_asks_for_the_token_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that cannot be had costs nobody the gateway."""
    monkeypatch.setenv("SCRAPE_TOKEN", "s3cret")
    with socket.socket() as kept, socket.create_server(("127.0.0.1", 0)) as taken:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{kept.getsockname()[1]}"
        telemetry = {"metrics_token": "env:SCRAPE_TOKEN", "metrics_listen": listen}
        (tmp_path / "one").mkdir()
        async with (
            running_gateway(tmp_path / "one", [model("m", SCRIPTED)], telemetry=telemetry),
            aiohttp.ClientSession(f"http://{listen}") as scraper,
        ):
            assert (await scraper.get("/metrics")).status == 403
            assert (await scraper.get("/metrics", headers={"authorization": "Bearer s3cret"})).status == 200
        telemetry["metrics_listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "two").mkdir()
        async with running_gateway(tmp_path / "two", [model("m", SCRIPTED)], telemetry=telemetry) as gateway:
            assert (await get(gateway, "/readyz"))[0] == 200


async def test_unknown_paths_answer_in_openais_shape(tmp_path: Path) -> None:
    """Also for a method that a path does not have."""
    async with running_gateway(tmp_path, [model("m", SCRIPTED)]) as gateway:
        for path, expected in (("/v1/nothing", 404), ("/v1/chat/completions", 405), ("/v1/feedback", 405)):
            status, body = await get(gateway, path)
            assert status == expected
            assert '"error":{"message":' in body
