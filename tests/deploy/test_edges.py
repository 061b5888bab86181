"""What each host says of itself stays inside: every edge that is shipped, before every such route of the gateway."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gateway.process.start_gate import health_routes
from gateway.wiring.web_app import web_app
from proxy.http.request_id import REQUEST_ID_HEADER
from proxy.routes import WIRE_AT
from tests.haproxy import running_haproxy
from tests.nginx import running_nginx
from tests.processes import until
from tests.redis_server import quiet_port
from tests.running_gateway import Running, model, running_gateway

EDGES: Final = ("haproxy", "nginx")


async def _unasked() -> Any:
    raise NotImplementedError


OF_THE_HOST: Final = ("/metrics", *health_routes(_unasked))
"""Routes that answer without a key, of one host: its metrics and its health, by every name."""


@contextlib.asynccontextmanager
async def behind(folder: Path, edge: str) -> AsyncIterator[tuple[Running, str]]:
    """A gateway, and the address of the edge before it."""
    scripted: list[dict[str, Any]] = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]
    async with running_gateway(folder, [model("small", scripted)]) as gateway:
        hosts = [int(gateway.url.rpartition(":")[2]), quiet_port()]
        if edge == "nginx":
            with running_nginx(folder, hosts) as url:
                yield gateway, url
        else:
            with running_haproxy(folder, hosts) as balancer:
                await until(lambda: balancer.up() == {"one"})
                yield gateway, balancer.url


@pytest.mark.parametrize("edge", EDGES)
async def test_what_a_host_says_of_itself_is_not_passed_on(tmp_path: Path, edge: str) -> None:
    """The gateway itself answers each; through the edge nobody does, however it is written, and `/v1` is not caught by it."""
    assert len(OF_THE_HOST) > 8
    async with behind(tmp_path, edge) as (gateway, url), aiohttp.ClientSession() as session:
        for path in OF_THE_HOST:
            async with session.get(gateway.url + path) as direct:
                assert direct.status != 404, path
            for written in (path, f"{path}/", f"{path}?verbose=1"):
                async with session.get(url + written) as got:
                    assert (got.status, REQUEST_ID_HEADER.decode() in got.headers) == (404, False), written
        async with session.get(f"{url}/v1/models", headers={"authorization": f"Bearer {gateway.key}"}) as got:
            assert got.status == 200, await got.text()


def test_no_other_route_begins_like_them() -> None:
    """The edges know beginnings of paths: a route `/health-reports` would be lost behind them."""
    others = {*WIRE_AT, *_paths(web_app(litellm=True).routes)} - {*OF_THE_HOST}
    assert len(others) > 100
    assert not [path for path in others if path.startswith(("/metrics", "/health", "/ready"))]


def _paths(routes: Sequence[Any]) -> Iterator[str]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from _paths(included.routes)
        else:
            yield route.path
