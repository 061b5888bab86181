"""What the gateway says, and what that means to who starts engines."""

from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from selfhosted.scale.gateway_client import GatewayAway, GatewayClient, GatewayRefused

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def asked(answer: Answer) -> int | None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        return await GatewayClient(session, str(server.make_url("/")), "p", "secret").desired()


def saying(text: str, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["authorization"] == "Bearer secret"
        assert request.path == "/v1/fleet/pools/p/target"
        return web.Response(text=text, status=status)

    return answer


@pytest.mark.parametrize(("text", "expected"), [('{"desired": 3}', 3), ('{"desired": null}', None), ("{}", None)])
async def test_a_number_or_nothing_decided(text: str, expected: int | None) -> None:
    """The number of replicas, or that nobody decided."""
    assert await asked(saying(text)) == expected


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<html>", 200),
        ("[]", 200),
        ('{"desired": -1}', 200),
        ('{"desired": "9"}', 200),
        ('{"desired": true}', 200),
        ("x" * 100_000, 200),
        *(("{}", status) for status in (408, 409, 429, 500, 503)),
    ],
)
async def test_an_answer_that_says_nothing_is_like_none(text: str, status: int) -> None:
    """A proxy's page, a wrong type, too much, or a failure that passes: what runs stays."""
    with pytest.raises(GatewayAway):
        await asked(saying(text, status))


async def test_a_refusal_says_what_the_gateway_said() -> None:
    """The token, mostly."""
    with pytest.raises(GatewayRefused, match="another's token"):
        await asked(saying('{"error": {"message": "It is another\'s token."}}', 401))


async def test_nobody_there() -> None:
    """Said by the error's kind alone."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(GatewayAway, match="does not answer"):
            await GatewayClient(session, "http://127.0.0.1:9", "p", "secret").desired()
