"""Replicas behind a name: every address once, and a resolver that may do what it likes."""

import asyncio
import socket
from ipaddress import ip_address
from typing import Any

import pytest

from selfhosted.config import DnsConfig
from selfhosted.discovery.dns import DnsSource, found_in, system_resolver
from selfhosted.discovery.source import MOST_REPLICAS, DiscoveredReplica, SourceFailed, SourceResult

CONFIG = DnsConfig(host="engines.internal", port=8000)


def answer(*hosts: str) -> list[tuple[Any, ...]]:
    return [
        (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 8000)) for host in hosts
    ]


class Resolver:
    """Says what it is told to say."""

    def __init__(self, *answers: list[tuple[Any, ...]] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[tuple[Any, ...]]:
        self.asked.append((host, port))
        told = self._answers.pop(0)
        if isinstance(told, Exception):
            raise told
        return told


async def test_each_address_is_a_replica_named_after_it() -> None:
    """In an order that does not depend on the answer's, both families."""
    resolver = Resolver(answer("10.0.0.10", "fd00::7", "10.0.0.9", "10.0.0.10"))
    found = await DnsSource(CONFIG, resolver).fetch()
    assert resolver.asked == [("engines.internal", 8000)]
    assert found.replicas == (
        DiscoveredReplica(name="10.0.0.9", url="http://10.0.0.9:8000"),
        DiscoveredReplica(name="10.0.0.10", url="http://10.0.0.10:8000"),
        DiscoveredReplica(name="fd00-0000-0000-0000-0000-0000-0000-0007", url="http://[fd00::7]:8000"),
    )


async def test_a_name_without_addresses_is_an_empty_answer() -> None:
    """A headless Service without ready pods has no record; anything else that goes wrong is a failure."""
    missing = Resolver(socket.gaierror(socket.EAI_NONAME, "no such"), [])
    source = DnsSource(CONFIG, missing)
    assert await source.fetch() == await source.fetch() == SourceResult()
    for error in (socket.gaierror(socket.EAI_AGAIN, "later"), OSError("odd"), UnicodeError("label")):
        with pytest.raises(SourceFailed):
            await DnsSource(CONFIG, Resolver(error)).fetch()


async def test_a_resolver_that_hangs_is_asked_once() -> None:
    """Its threads do not pile up; when it answers at last, the answer counts."""
    gate = asyncio.Event()
    asked = 0

    async def hangs(host: str, port: int) -> list[tuple[Any, ...]]:
        nonlocal asked
        asked += 1
        await gate.wait()
        return answer("10.0.0.1")

    source = DnsSource(CONFIG, hangs, patience_s=0.01)
    for _ in range(3):
        with pytest.raises(SourceFailed):
            await source.fetch()
    gate.set()
    await asyncio.sleep(0)
    assert [each.name for each in (await source.fetch()).replicas] == ["10.0.0.1"]
    assert asked == 1


def test_addresses_that_no_engine_has_are_told() -> None:
    """With a zone, for everybody, or none at all."""
    nobodys = str(ip_address(0))
    found = found_in(CONFIG, answer("fe80::1%eth0", nobodys, "224.0.0.1", "10.0.0.1", "x" * 500))
    assert [each.name for each in found.replicas] == ["10.0.0.1"]
    assert len(found.unusable) == 4
    assert max(map(len, found.unusable)) < 200


def test_a_huge_answer_is_cut() -> None:
    """A pool has so many replicas."""
    hosts = [f"10.{at // 62_500}.{at // 250 % 250}.{at % 250}" for at in range(2 * MOST_REPLICAS)]
    assert len(found_in(CONFIG, answer(*hosts)).replicas) == MOST_REPLICAS


async def test_this_machines_resolver_is_asked_without_blocking() -> None:
    """A literal address resolves to itself, in a thread."""
    found = found_in(CONFIG, await system_resolver("127.0.0.1", 8000))
    assert [each.url for each in found.replicas] == ["http://127.0.0.1:8000"]
