"""CloudEvents to a topic of Kafka, against the mock cluster of librdkafka: a real broker on real sockets, but none of Apache's."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cost.events.event import Event, encoder
from cost.events.sink import Batch, BatchRefused, SinkFailed
from gateway.events.kafka_sink import KafkaSink
from tests.cost.entries import settle

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
    return KafkaSink(topic, {"bootstrap_servers": servers, "request_timeout_ms": 5_000, **settings}, tls=False)


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
