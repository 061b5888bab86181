"""What a reverse proxy before the gateway refuses by its path is reached by no other writing of it."""

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest

from proxy.routes import WIRES
from tests.dashboards.pages.routes_table import OTHER_ROUTES, RIGHTS
from tests.proxy.http.callers import Caller
from tests.running_gateway import model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_seam import new_key

_FREE: Final = frozenset({"everybody", "every key", "its own token"})
_CLOSED: Final = (
    *RIGHTS,
    *(route for route, who in OTHER_ROUTES.items() if who not in _FREE),
    *("GET /metrics", "GET /healthz", "GET /readyz", "GET /dashboard/sign-in"),
    *(f"POST {wire.path}" for wire in WIRES),
)
_PARAMETER: Final = re.compile(r"\{\w+(?::\w+)?\}")


def _encoded(text: str, at: int) -> str:
    return f"{text[:at]}%{ord(text[at]):02x}{text[at + 1 :]}"


def _writings(path: str) -> list[str]:
    """Other ways to write what is fixed in a path."""
    fixed = path.partition("{")[0]
    rest = _PARAMETER.sub("x", path.removeprefix(fixed))
    letters = [at for at in range(1, len(fixed)) if fixed[at] != "/"]
    slashes = [at for at in range(1, len(fixed)) if fixed[at] == "/"]
    places = [letters[0], *slashes[-1:]]
    written = [_encoded(fixed, at) + rest for at in dict.fromkeys(places)]
    written += [_encoded(fixed, at).replace("%2f", "%2F") + rest for at in slashes[:1]]
    written.append("/" + "".join(f"%{ord(each):02x}" for each in fixed[1:]) + rest)
    return written


async def test_no_encoding_leads_around_a_path(tmp_path: Path, upstream: Upstream) -> None:
    """An administrator's key gets 404 for every closed route of which a fixed letter or slash is encoded, on both planes."""
    async with running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway:
        administrator = await new_key(gateway, "admin")
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        caller = Caller(*await asyncio.open_connection(host, int(port)))
        head = f"HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {administrator}\r\ncontent-length: 0\r\n\r\n"
        reached = []
        for route in _CLOSED:
            method, path = route.split(" ")
            if path.startswith("/v1/admin/limits/model/"):
                # Written otherwise it is the address of another scope's limits, which says that there is no such scope.
                continue
            for written in _writings(path):
                await caller.send(f"{method} {written} {head}".encode())
                status, _ = await caller.reply()
                if status not in {404, 405}:
                    reached.append((method, written, status))
        await caller.leave()
        assert reached == []


async def test_azures_addresses_have_what_azure_has(tmp_path: Path, upstream: Upstream) -> None:
    """Nothing of the admin API, finance, operations or metrics is below /openai, with /v1 or without."""
    async with running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway:
        administrator = await new_key(gateway, "admin")
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        caller = Caller(*await asyncio.open_connection(host, int(port)))
        head = f"HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {administrator}\r\ncontent-length: 0\r\n\r\n"
        reached = []
        for route in _CLOSED:
            method, path = route.split(" ")
            if route not in RIGHTS and OTHER_ROUTES.get(route) not in {"admins", "operators"} and path != "/metrics":
                continue
            plain = _PARAMETER.sub("x", path)
            for written in (f"/openai{plain}", f"/openai{plain.removeprefix('/v1')}", f"/openai/v1{plain}"):
                await caller.send(f"{method} {written} {head}".encode())
                status, _ = await caller.reply()
                if status not in {404, 405}:
                    reached.append((method, written, status))
        await caller.leave()
        assert reached == []


@pytest.mark.parametrize("path", ["/v1/models/org%2Fllama", "/v1/models/org/llama", "/openai/v1/models/org%2fllama"])
async def test_a_name_may_be_encoded(tmp_path: Path, upstream: Upstream, path: str) -> None:
    """Clients encode the slash of a model's name, and may do so."""
    async with running_gateway(tmp_path, [model("org/llama", [upstream.deployment("ok")])]) as gateway:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        caller = Caller(*await asyncio.open_connection(host, int(port)))
        await caller.send(f"GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {gateway.key}\r\n\r\n".encode())
        status, body = await caller.reply()
        await caller.leave()
        assert (status, b'"id":"org/llama"' in body) == (200, True)
