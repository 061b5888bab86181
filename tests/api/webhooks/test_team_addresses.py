"""Addresses that teams enter: only at hosts that the operator allows, and never where a callback may not go."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncEngine

from api.webhooks.addresses import BadCallbackUrl, CallbackAddresses
from api.webhooks.callbacks import DESTINATION
from api.webhooks.outbox import Outbox
from api.webhooks.sender import Callbacks, Sender
from api.webhooks.team_addresses import Shape, TeamAddresses, host_of

_HOSTS = ("hooks.slack.com", "*.example.com", "example.org", "127.0.0.1")
_NOW_US = 1_800_000_000_000_000


@contextlib.asynccontextmanager
async def _listening(take: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/hooks", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hooks"
    finally:
        await runner.cleanup()


def _rules(*networks: str, has_mail: bool = True) -> TeamAddresses:
    return TeamAddresses(_HOSTS, CallbackAddresses(networks), has_mail=has_mail)


@pytest.mark.parametrize(
    ("shape", "typed", "kept", "host"),
    [
        ("standard", " https://a.b.example.com/x?y=1 ", "https://a.b.example.com/x?y=1", "a.b.example.com"),
        (
            "slack",
            "https://hooks.slack.com/services/T/B/s",
            "slack+https://hooks.slack.com/services/T/B/s",
            "hooks.slack.com",
        ),
        ("slack", "https://HOOKS.slack.com/s", "slack+https://HOOKS.slack.com/s", "hooks.slack.com"),
        ("mail", "ops@Example.org", "mailto:ops@Example.org", "example.org"),
    ],
)
def test_an_allowed_address_is_kept_by_its_shape(shape: Shape, typed: str, kept: str, host: str) -> None:
    """A scheme says how it is sent, and its host is what may be shown."""
    assert _rules().made(shape, typed) == kept
    assert host_of(kept) == host


@pytest.mark.parametrize(
    ("shape", "typed"),
    [
        ("standard", "https://example.com/x"),
        ("standard", "https://evil-example.com/"),
        ("standard", "https://hooks.slack.com.evil.test/"),
        ("standard", "https://hooks.slack.com@evil.test/"),
        ("standard", "https://evil.test/#.example.com"),
        ("standard", "http://a.example.com/"),
        ("standard", "file:///etc/passwd"),
        ("standard", "mailto:ops@example.org"),
        ("standard", "slack+https://hooks.slack.com/"),
        ("slack", "https://127.0.0.1/"),
        ("standard", "http://127.0.0.1/"),
        ("standard", ""),
        ("mail", "ops@evil.test"),
        ("mail", "a@example.org,b@evil.test"),
        ("mail", "a@example.org\r\nBcc: b@evil.test"),
        ("mail", "https://a.example.com/"),
    ],
)
def test_any_other_address_is_refused(shape: Shape, typed: str) -> None:
    """Whatever is written around a host that is allowed, and this machine although its address is listed."""
    with pytest.raises(BadCallbackUrl):
        _rules().made(shape, typed)


def test_mail_needs_a_server() -> None:
    """Where none is configured no team can choose mail."""
    rules = _rules(has_mail=False)
    assert rules.shapes == ("standard", "slack")
    with pytest.raises(BadCallbackUrl, match="no mail server"):
        rules.check("mailto:ops@example.org")


async def test_each_shape_arrives_and_a_private_address_is_never_called(engine: AsyncEngine) -> None:
    """A webhook is signed with the team's secret, Slack gets words alone; without the operator's network nothing is called."""

    async def keys_of(team_id: str) -> tuple[bytes, ...]:
        return (team_id.encode() * 4,)

    got: list[tuple[bool, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(("webhook-signature" in request.headers, await request.read()))
        return web.Response()

    async with _listening(take) as url:
        outbox = Outbox(engine, lambda: _NOW_US)
        for name, address in (("a", url), ("b", f"slack+{url}")):
            assert await outbox.put(name, DESTINATION, "t", {"text": "hello"}, url=address, team_id="team_a")
        for networks, delivered in (((), 0), (("127.0.0.0/8",), 2)):
            addresses = CallbackAddresses(networks)
            sender = Sender(outbox, {}, now_us=lambda: _NOW_US, callbacks=Callbacks(addresses, keys_of))
            outbox = Outbox(engine, lambda: _NOW_US + 10**9)
            await sender.send_due(DESTINATION)
            await sender.aclose()
            assert len(got) == delivered
    assert sorted(signed for signed, _ in got) == [False, True]
    assert (False, b'{"text": "hello"}') in got
