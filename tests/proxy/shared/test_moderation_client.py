"""Moderation services over real sockets: whatever they do, there is a verdict in time or none."""

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from guard.moderation import PIECE_CHARS, Verdict, found
from proxy.shared.moderation_client import MOST_REPLY_BYTES, ModerationClient, Service, ServiceUnavailable

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
CLEAN = {"results": [{"flagged": False, "categories": {"hate": False}, "category_scores": {"hate": 0.0}}]}
SECRET = "the text that nobody else may see"


@contextlib.asynccontextmanager
async def service(answer: Answer, *, timeout_s: float = 20.0) -> AsyncIterator[tuple[ModerationClient, Service]]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    client = ModerationClient()
    try:
        async with TestServer(app) as server:
            url = str(server.make_url("/v1/moderations?token=in-the-address"))
            yield client, Service(url=url, shape="openai", key="the-key", timeout_s=timeout_s)
    finally:
        await client.aclose()


async def asked(answer: Answer, texts: Sequence[str] = (SECRET,), *, timeout_s: float = 20.0) -> Verdict:
    async with service(answer, timeout_s=timeout_s) as (client, to):
        return await client.judge(to, texts, "input")


def saying(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=body, status=status, headers=headers, content_type="application/json")

    return answer


async def test_a_service_is_asked_as_its_shape_says() -> None:
    """The key in its header, the texts in the body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["authorization"] == "Bearer the-key"
        assert await request.json() == {"input": [SECRET]}
        return web.json_response(CLEAN)

    assert (await asked(answer)).flagged is False


async def test_without_texts_nobody_is_asked() -> None:
    """No call, and nothing to object to."""
    assert (await asked(saying(b"", 500), ())).flagged is False


@pytest.mark.parametrize("status", [201, 204, 301, 307, 400, 401, 403, 404, 408, 429, 500, 502, 503, 529])
async def test_any_other_status_is_no_verdict(status: int) -> None:
    """BerriAI/litellm#33673: a 429 or a wrong key was a pass."""
    with pytest.raises(ServiceUnavailable) as raised:
        await asked(saying(b"" if status == 204 else json.dumps(CLEAN).encode(), status))
    assert raised.value.reason == "status"


async def test_no_redirect_is_followed() -> None:
    """The texts go where the configuration says."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    with pytest.raises(ServiceUnavailable):
        await asked(answer)
    assert paths == ["/v1/moderations"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad gateway</html>",
        b"[]",
        b'{"results": {"0": {"flagged": false}}}',
        b'{"results": [{"flagged": null}]}',
    ],
)
async def test_a_200_of_something_else_is_no_verdict(body: bytes) -> None:
    """Wrong JSON, a list for an object and the other way, a flag that is null."""
    with pytest.raises(ServiceUnavailable) as raised:
        await asked(saying(body))
    assert raised.value.reason == "reply"


async def test_a_slow_service_is_waited_for_as_long_as_configured() -> None:
    """Its first byte, and a body that trickles."""
    never = asyncio.Event()

    async def silent(_request: web.Request) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    async def trickling(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.005)

    for answer in (silent, trickling):
        with pytest.raises(ServiceUnavailable) as raised:
            await asked(answer, timeout_s=0.05)
        assert raised.value.reason == "deadline"


async def test_the_wait_for_a_place_counts() -> None:
    """A hanging service holds its places; who comes after waits no longer than configured."""
    never = asyncio.Event()

    async def hanging(_request: web.Request) -> web.StreamResponse:
        await never.wait()
        raise AssertionError

    async with service(hanging, timeout_s=0.05) as (_, to):
        client = ModerationClient(at_once=1)
        try:
            ended = await asyncio.gather(*(client.judge(to, ["a"], "input") for _ in range(20)), return_exceptions=True)
        finally:
            await client.aclose()
    assert {getattr(each, "reason", None) for each in ended} == {"deadline"}


async def test_calls_at_a_time_are_bounded() -> None:
    """No more than places."""
    inside, most = 0, 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.005)
        inside -= 1
        return web.json_response({"results": [CLEAN["results"][0]] * len((await request.json())["input"])})

    async with service(answer) as (_, to):
        client = ModerationClient(at_once=3)
        try:
            await asyncio.gather(*(client.judge(to, ["a"], "input") for _ in range(20)))
        finally:
            await client.aclose()
    assert most == 3


async def test_a_connection_that_ends_is_no_verdict() -> None:
    """Before an answer, and within one."""

    async def gone(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(b'{"results": [{"flagged": false}')
        assert request.transport is not None
        request.transport.close()
        return response

    for answer in (gone, half):
        with pytest.raises(ServiceUnavailable) as raised:
            await asked(answer)
        assert raised.value.reason == "connection"


async def test_nobody_there_is_no_verdict() -> None:
    """BerriAI/litellm#30728: an analyzer that is down let everything pass."""
    async with service(saying(b"")) as (client, to):
        pass
    client = ModerationClient()
    with pytest.raises(ServiceUnavailable) as raised:
        await client.judge(to, [SECRET], "input")
    await client.aclose()
    assert raised.value.reason == "connection"


async def test_a_kept_connection_that_was_just_closed_is_tried_once_more() -> None:
    """A service that closes after each answer without saying so."""
    calls = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert request.transport is not None
            request.transport.close()
        return web.json_response(CLEAN)

    assert (await asked(answer)).flagged is False
    assert calls == 2


@pytest.mark.parametrize("packed", [False, True])
async def test_a_reply_without_end_is_not_read(packed: bool) -> None:
    """A megabyte is enough, also of one that was small while it was packed."""
    body = b'{"results": [{"flagged": false}], "x": "' + b"0" * 4 * MOST_REPLY_BYTES + b'"}'
    answer = saying(gzip.compress(body), headers={"content-encoding": "gzip"}) if packed else saying(body)
    with pytest.raises(ServiceUnavailable) as raised:
        await asked(answer)
    assert raised.value.reason == "reply"


async def test_a_packed_reply_is_read() -> None:
    """A proxy before the service packs what it passes on."""
    assert (
        await asked(saying(gzip.compress(json.dumps(CLEAN).encode()), headers={"content-encoding": "gzip"}))
    ).flagged is False


@pytest.mark.parametrize(
    ("body", "coding"),
    [(b"\x00\x01", "gzip"), (b"{}", "br"), (gzip.compress(b"{}" * 99)[:20], "gzip")],
    ids=["no gzip", "not packed", "cut"],
)
async def test_a_reply_packed_wrongly_is_no_verdict(body: bytes, coding: str) -> None:
    """No gzip, a coding that was not asked for, and a part of one."""
    with pytest.raises(ServiceUnavailable):
        await asked(saying(body, headers={"content-encoding": coding}))


async def test_one_failing_part_of_a_long_text_allows_nothing_and_the_others_forbid() -> None:
    """What was flagged in one piece counts, although another was not judged."""
    long = "clean " * PIECE_CHARS * 4

    def answer(flags: bool) -> Answer:
        async def each(request: web.Request) -> web.StreamResponse:
            pieces = (await request.json())["input"]
            if any("end" in piece for piece in pieces):
                return web.Response(status=500)
            result = {"flagged": flags, "categories": {"hate": flags}}
            return web.json_response({"results": [result] * len(pieces)})

        return each

    assert found(await asked(answer(flags=True), [long + "end"]), None, {}) == ["hate"]
    with pytest.raises(ServiceUnavailable):
        await asked(answer(flags=False), [long + "end"])


async def test_neither_logs_nor_errors_repeat_what_was_sent_or_said(caplog: pytest.LogCaptureFixture) -> None:
    """majiayu000/litellm-rs#622, NVIDIA-NeMo/Guardrails#2105: services repeat the text in their errors, addresses hold tokens."""
    echo = saying(json.dumps({"error": f"cannot judge: {SECRET}"}).encode(), 400)
    with caplog.at_level(logging.DEBUG), pytest.raises(ServiceUnavailable) as raised:
        await asked(echo)
    with caplog.at_level(logging.DEBUG), pytest.raises(ServiceUnavailable):
        await asked(saying(SECRET.encode()))
    told = (
        " ".join(record.getMessage() for record in caplog.records if record.name != "aiohttp.access")
        + str(raised.value)
        + repr(raised.value)
    )
    assert "no verdict from the service" in told
    for hidden in (SECRET, "the-key", "in-the-address"):
        assert hidden not in told


async def test_a_failing_service_is_logged_once_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Not a line for each request of an outage."""
    well = False

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(CLEAN) if well else web.Response(status=500)

    async with service(answer) as (client, to):
        for _ in range(5):
            with pytest.raises(ServiceUnavailable):
                await client.judge(to, ["a"], "input")
        well = True
        await client.judge(to, ["a"], "input")
    assert [record.levelname for record in caplog.records if record.name == "weighbridge.guard"] == ["WARNING"] * 2
