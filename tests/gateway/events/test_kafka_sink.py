"""CloudEvents to a topic of Kafka, against the mock cluster of librdkafka: a real broker on real sockets, but none of Apache's. It has neither
TLS nor SASL, which a front of it has.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cost.events.event import Event, encoder
from cost.events.sink import Batch, BatchRefused, Sink, SinkFailed
from gateway.configuration.environment import resolve_secret
from gateway.configuration.events_config import SinkConfig
from gateway.events.kafka_sink import KafkaSink
from gateway.events.sinks import open_sink
from tests.cost.entries import settle
from tests.kafka_front import MECHANISMS, KafkaFront
from tests.selfhosted.discovery.authorities import ONE, TWO

aiokafka = pytest.importorskip("aiokafka", reason="the extra `kafka` is not installed")
confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


def batch(*names: str, first: int = 1) -> Batch:
    events = tuple(Event(number, settle(name)) for number, name in enumerate(names, first))
    return Batch(events, tuple(map(encoder("here"), events)))


@pytest.fixture
def servers() -> Iterator[list[str]]:
    """Addresses of three brokers, which end with their producer."""
    cluster: Any = confluent_kafka.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 3})
    found = cluster.list_topics(timeout=10).brokers.values()
    yield [f"{each.host}:{each.port}" for each in found]
    del cluster


def sink(servers: list[str], topic: str = "usage", **settings: Any) -> KafkaSink:
    return KafkaSink(topic, {"bootstrap_servers": servers, "request_timeout_ms": 5_000, **settings})


async def read(servers: list[str], count: int, topic: str = "usage") -> list[Any]:
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(30):
            return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


async def test_each_event_is_a_message(servers: list[str]) -> None:
    """In structured mode, keyed by its request, acknowledged before `send` returns."""
    made = sink(servers)
    await made.send(batch("a", "b"))
    await made.send(batch("c", first=3))
    await made.aclose()
    found = {each.key.decode(): each for each in await read(servers, 3)}
    assert {json.loads(each.value)["sequence"][-1] for each in found.values()} == {"1", "2", "3"}
    assert found["a"].headers == (("content-type", b"application/cloudevents+json; charset=UTF-8"),)
    assert json.loads(found["c"].value)["id"] == "c/1/settle"


async def test_brokers_that_are_away_are_a_failure_within_its_time(servers: list[str]) -> None:
    """A producer of aiokafka waits for ever, and so does its end (aiokafka 1101); afterwards a new one is used."""
    made = sink(["127.0.0.1:1"])
    with pytest.raises(SinkFailed):
        async with asyncio.timeout(10):
            await made.send(batch("a"))
    made._settings["bootstrap_servers"] = servers
    await made.send(batch("a"))
    await made.aclose()
    assert [each.key for each in await read(servers, 1)] == [b"a"]


async def test_brokers_that_go_away_are_left_in_time() -> None:
    """In the middle of a batch; nothing of the producer goes on."""
    cluster: Any = confluent_kafka.Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1})
    found = cluster.list_topics(timeout=10).brokers.values()
    made = sink([f"{each.host}:{each.port}" for each in found])
    await made.send(batch("a"))
    before = asyncio.all_tasks()
    del cluster
    with pytest.raises((TimeoutError, SinkFailed)):
        async with asyncio.timeout(3):
            await made.send(batch("b"))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    await made.aclose()


async def test_an_event_that_is_too_large_is_refused(servers: list[str]) -> None:
    """So it is found and set aside, and the others go."""
    made = sink(servers, max_request_size=2_000)
    event = Event(1, settle("large", flags=("x" * 3_000,)))
    with pytest.raises(BatchRefused):
        await made.send(Batch((event,), (encoder("here")(event),)))
    await made.aclose()


@pytest.fixture
async def front(servers: list[str], tmp_path: Path) -> AsyncIterator[KafkaFront]:
    """The brokers behind TLS and SASL; clients are asked for their certificate, and may have none."""
    certificate, key = tmp_path / "one.pem", tmp_path / "one.key"
    certificate.write_text(ONE.certificate)
    key.write_text(ONE.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_OPTIONAL
    async with KafkaFront(servers, {"weighbridge": "a pass,word=1"}, context).open() as opened:
        yield opened


def signed_in(front: KafkaFront, tmp_path: Path, password: str, **fields: Any) -> Sink:
    """The sink that the configuration means."""
    (tmp_path / "password").write_text(password)
    written = {
        "name": "bus",
        "kind": "kafka",
        "servers": front.servers,
        "topic": "usage",
        "ca": tmp_path / "one.pem",
        "user": "weighbridge",
        "password": f"file:{tmp_path}/password",
        "timeout_s": 5,
        **fields,
    }
    config: Any = TypeAdapter(SinkConfig).validate_python(written)
    return open_sink(config, resolve_secret).sink


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_it_signs_in_over_tls(front: KafkaFront, servers: list[str], tmp_path: Path, mechanism: str) -> None:
    """By each mechanism that the configuration knows. librdkafka's own client signs in at the same front."""
    theirs = {
        "bootstrap.servers": ",".join(front.servers),
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": mechanism,
        "sasl.username": "weighbridge",
        "sasl.password": "a pass,word=1",
        "ssl.ca.location": str(tmp_path / "one.pem"),
    }
    found = await asyncio.to_thread(lambda: confluent_kafka.Producer(theirs).list_topics(timeout=30))
    assert {f"{each.host}:{each.port}" for each in found.brokers.values()} == set(front.servers)
    made = signed_in(front, tmp_path, "a pass,word=1", sasl=mechanism)
    await made.send(batch("a", "b"))
    await made.aclose()
    assert {each.key for each in await read(servers, 2)} == {b"a", b"b"}


async def test_a_password_that_was_changed_is_read_again(front: KafkaFront, servers: list[str], tmp_path: Path) -> None:
    """What is wrong is told by name, since brokers that are away look alike; the new one is in its file."""
    made = signed_in(front, tmp_path, "the old one", sasl="SCRAM-SHA-512")
    with pytest.raises(SinkFailed, match="SaslAuthenticationFailed"):
        await made.send(batch("a"))
    (tmp_path / "password").write_text("a pass,word=1")
    await made.send(batch("a"))
    await made.aclose()
    assert [each.key for each in await read(servers, 1)] == [b"a"]


async def test_certificates_count_on_both_sides(front: KafkaFront, tmp_path: Path) -> None:
    """Brokers of another authority are not spoken to, and ours is shown to those that ask."""
    (tmp_path / "two.pem").write_text(TWO.certificate)
    made = signed_in(front, tmp_path, "a pass,word=1", sasl="PLAIN", ca=tmp_path / "two.pem")
    with pytest.raises(SinkFailed, match="SSL"):
        await made.send(batch("a"))
    own = {"certificate": tmp_path / "one.pem", "key": tmp_path / "one.key"}
    made = signed_in(front, tmp_path, "a pass,word=1", sasl="PLAIN", **own)
    await made.send(batch("a"))
    await made.aclose()
    assert front.peers[-1]
