"""CloudEvents by HTTP, to a real server that fails, hangs, redirects and asks for patience."""

import asyncio
import contextlib
import gzip
import json
import ssl
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from api.webhooks.signature import signing_key
from cost.events.event import Event, encoder
from cost.events.lago import lago_encoder
from cost.events.sink import Batch, BatchRefused, SinkFailed
from gateway.events.http_sink import BATCHED, LAGO, STRUCTURED, HttpSink, Shape
from gateway.events.tls import tls_of
from providers.connections.forward_proxy import ForwardProxy
from tests.api.webhooks.receiver import OLDER_SECRET, SECRET, Receiver, receiving
from tests.cost.entries import settle
from tests.selfhosted.discovery.authorities import ONE, TWO


def batch(count: int) -> Batch:
    events = tuple(Event(number, settle(f"r{number}")) for number in range(1, count + 1))
    return Batch(events, tuple(map(encoder("here"), events)))


async def sent(receiver: Receiver, count: int = 2, url: str = "", **fields: Any) -> None:
    sink = HttpSink(url or receiver.url, **fields)
    try:
        await sink.send(batch(count))
    finally:
        await sink.aclose()


async def test_a_batch_is_one_request() -> None:
    """In CloudEvents' batched mode, also with one event; the token goes with it. OpenMeter refuses a type with a charset."""
    async with receiving() as receiver:
        await sent(receiver, 3, headers=lambda: {"authorization": "Bearer t0ken"})
        await sent(receiver, 1)
    first, second = receiver.received
    assert first.headers["content-type"] == "application/cloudevents-batch+json"
    assert first.headers["authorization"] == "Bearer t0ken"
    assert [each["id"] for each in json.loads(first.body)] == ["r1/1/settle", "r2/1/settle", "r3/1/settle"]
    assert len(json.loads(second.body)) == 1
    assert "authorization" not in second.headers


async def test_single_events_are_objects() -> None:
    """In structured mode, for receivers that take no lists."""
    async with receiving() as receiver:
        await sent(receiver, 1, shape=STRUCTURED)
    assert [json.loads(each.body)["id"] for each in receiver.received] == ["r1/1/settle"]
    assert receiver.received[0].headers["content-type"] == "application/cloudevents+json"


async def test_a_batch_is_signed_as_webhooks_are() -> None:
    """The reference verifier takes it with either secret, and not with another body."""
    async with receiving() as receiver:
        await sent(receiver, keys=[signing_key(SECRET), signing_key(OLDER_SECRET)])
    (found,) = receiver.received
    for secret in (SECRET, OLDER_SECRET):
        Webhook(secret).verify(found.body, found.headers)
    with pytest.raises(Exception, match="matching"):
        Webhook(SECRET).verify(found.body.replace(b"200", b"201"), found.headers)


@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_what_is_about_the_events_is_a_refusal(status: int) -> None:
    """So the batch is tried in parts."""
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=status)]
        with pytest.raises(BatchRefused, match=str(status)):
            await sent(receiver)


@pytest.mark.parametrize(
    ("shape", "status", "told"),
    [
        (BATCHED, 409, ""),
        (LAGO, 422, '{"code":"validation_errors","error_details":{"0":{"transaction_id":["value_already_exist"]}}}'),
    ],
)
async def test_an_event_that_the_receiver_has_already_is_taken(shape: Shape, status: int, told: str) -> None:
    """Killed between its acknowledgement and our note of it, a sink gets events again; were that a refusal, it would wait for ever."""
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=status, text=told) for _ in range(2)]
        await sent(receiver, 1, shape=shape)
        # Of several, nobody knows which ones.
        with pytest.raises(BatchRefused):
            await sent(receiver, 2, shape=shape)


async def test_lago_gets_its_own_shape() -> None:
    """It reads no CloudEvents. A subscription is a team, and cents are exact."""
    events = (
        Event(1, settle("a", team_id="team_search", cost_nanousd=179_400)),
        Event(2, settle("b", cost_nanousd=None)),
    )
    encode = lago_encoder("llm_usage")
    async with receiving() as receiver:
        sink = HttpSink(receiver.url, shape=LAGO)
        await sink.send(Batch(events, tuple(map(encode, events))))
        await sink.aclose()
    (found,) = receiver.received
    assert found.headers["content-type"] == "application/json"
    first, second = json.loads(found.body)["events"]
    assert (first["transaction_id"], first["external_subscription_id"], first["code"]) == (
        "a/1/settle",
        "team_search",
        "llm_usage",
    )
    assert first["precise_total_amount_cents"] == "0.0179400"
    assert float(first["timestamp"]) == pytest.approx(events[0].entry.at_us / 1e6, abs=0.001)
    assert first["properties"]["cost_nanousd"] == 179_400
    assert "precise_total_amount_cents" not in second


async def test_a_token_that_was_renewed_is_read_again() -> None:
    """After a failure: its file has the new one, and nobody restarts anything."""
    tokens = ["old", "new"]
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=401)]
        sink = HttpSink(receiver.url, headers=lambda: {"x-api-key": tokens.pop(0)})
        with pytest.raises(SinkFailed):
            await sink.send(batch(1))
        await sink.send(batch(1))
        await sink.send(batch(1))
        await sink.aclose()
    assert [each.headers["x-api-key"] for each in receiver.received] == ["old", "new", "new"]


async def test_a_receiver_with_its_own_authority_may_ask_for_our_certificate(tmp_path: Path) -> None:
    """It is trusted by `ca` alone, and takes nothing from who shows none."""
    pem = {name: tmp_path / name for name in ("one", "one.key", "two")}
    pem["one"].write_text(ONE.certificate)
    pem["one.key"].write_text(ONE.key)
    pem["two"].write_text(TWO.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pem["one"])
    context.load_cert_chain(pem["one"], pem["one.key"])
    context.verify_mode = ssl.CERT_REQUIRED
    heads: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"]"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for ca, certificate in ((pem["two"], pem["one"]), (pem["one"], None)):
            with pytest.raises(SinkFailed):
                await sent(Receiver(), url=url, tls=tls_of(ca, certificate, certificate and pem["one.key"]))
        await sent(Receiver(), url=url, tls=tls_of(pem["one"], pem["one"], pem["one.key"]))
    assert len(heads) == 1


@pytest.mark.parametrize("status", [302, 307, 401, 403, 404, 410, 429, 500, 503])
async def test_what_is_about_the_sink_makes_all_wait(status: int) -> None:
    """A token that ran out must not set events aside, and a redirect is not followed: it may lead anywhere."""
    async with receiving() as receiver, receiving() as elsewhere:
        headers = {"retry-after": "7", "location": elsewhere.url}
        receiver.answers = [web.Response(status=status, headers=headers)]
        with pytest.raises(SinkFailed, match=str(status)) as failure:
            await sent(receiver)
    assert not isinstance(failure.value, BatchRefused)
    assert failure.value.retry_after_s == 7
    assert elsewhere.received == []


async def test_nobody_there_is_told_without_the_address() -> None:
    """An address may hold a token."""
    async with receiving() as receiver:
        url = receiver.url
    with pytest.raises(SinkFailed) as failure:
        await sent(receiver, url=f"{url}?token=s3cret")
    assert "s3cret" not in str(failure.value)
    assert "127.0.0.1" not in str(failure.value)


async def test_a_connection_that_is_cut_is_a_failure() -> None:
    """The server reads the batch, and never says that it has it."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        with pytest.raises(SinkFailed):
            await sent(Receiver(), url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


@pytest.mark.parametrize(
    ("status", "failure"), [(200, None), (400, BatchRefused), (422, BatchRefused), (500, SinkFailed)]
)
@pytest.mark.parametrize("encoded", [False, True])
async def test_an_endless_reply_is_left(status: int, failure: type[Exception] | None, *, encoded: bool) -> None:
    """Its status tells; of what follows only the beginning is read, and nothing is made larger than it came."""
    told = 0
    piece = gzip.compress(bytes(50_000_000)) if encoded else bytes(50_000)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal told
        await reader.readuntil(b"]")
        encoding = b"content-encoding: gzip\r\n" if encoded else b""
        writer.write(b"HTTP/1.1 %d Any\r\ntransfer-encoding: chunked\r\n%b\r\n" % (status, encoding))
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
                told += len(piece)
        writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        sending = sent(Receiver(), 1, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        tracemalloc.start()
        try:
            with contextlib.nullcontext() if failure is None else pytest.raises(failure, match=str(status)):
                await sending
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # What the system holds for a reader that does not read.
    assert told < 20_000_000
    assert peak < 5_000_000


@pytest.mark.parametrize("shape", [STRUCTURED, LAGO])
@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_refusal_stands_whatever_becomes_of_its_body(
    shape: Shape, *, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed after the heads, or a byte now and then for ever: the one event is set aside, and does not hold up all that follow."""
    monkeypatch.setattr("gateway.events.http_sink._REPLY_S", 0.1)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 422 No\r\ncontent-length: 100000\r\n\r\n{")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            while not is_cut:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        is_over.set()

    is_over = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        with pytest.raises(BatchRefused, match="422"):
            await sent(Receiver(), 1, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", shape=shape)
        await is_over.wait()


async def test_a_sink_that_hangs_can_be_cancelled_and_used_again() -> None:
    """The delivery bounds its time."""
    async with receiving() as receiver:
        held = asyncio.Event()
        receiver.taken = held.wait
        sink = HttpSink(receiver.url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sink.send(batch(1))
        held.set()
        await sink.send(batch(1))
        await sink.aclose()
    assert len(receiver.received) == 2


@pytest.mark.parametrize(("host", "asked"), [("events.example.com:443", True), ("127.0.0.1:1", False)])
async def test_a_forward_proxy_is_asked_for_the_way_out(host: str, asked: bool) -> None:
    """As for models: by CONNECT, with its password, unless the host is named in NO_PROXY."""
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        proxy = ForwardProxy("127.0.0.1", server.sockets[0].getsockname()[1], "Basic bWU6cA==", ("127.0.0.1",))
        with pytest.raises(SinkFailed):
            async with asyncio.timeout(20):
                await sent(Receiver(), url=f"https://{host}/", proxy=proxy)
    assert bool(heads) is asked
    if asked:
        assert heads[0].startswith(b"CONNECT events.example.com:443 ")
        assert b"bWU6cA==" in heads[0]
