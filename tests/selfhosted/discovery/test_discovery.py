"""Who a pool's replicas are, from sources that fail, contradict each other and forget."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel import SQLModel

from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery, DiscoveryObserver, merged, ranked
from selfhosted.discovery.source import MOST_REPLICAS, DiscoveredReplica, SourceFailed, SourceResult
from selfhosted.replica import Address
from selfhosted.replica import Source as SourceName
from tests.selfhosted.registry.registered import Clock, Process, pool


def spotted(*names: str, draining: bool = False) -> SourceResult:
    return SourceResult(
        replicas=tuple(DiscoveredReplica(name=name, url=f"http://{name}:8000", draining=draining) for name in names)
    )


class Told:
    """A source that says what it is told to say, the last word again and again."""

    every_s = 0.0

    def __init__(self, *answers: SourceResult | Exception, name: SourceName = "dns") -> None:
        self.name: SourceName = name
        self._answers = list(answers)

    async def fetch(self) -> SourceResult:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Counts(DiscoveryObserver):
    """What was counted."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.conflicts: list[str] = []

    def discovery_looked(self, pool: str, source: SourceName, result: str) -> None:
        self.looks.append(result)

    def discovery_conflict(self, pool: str, kind: str) -> None:
        self.conflicts.append(kind)


class Seen:
    """A discovery, and how often it changed."""

    def __init__(self, process: Process, *sources: Told, config: PoolConfig | None = None) -> None:
        self.counts = Counts()
        self.changes = 0
        self.discovery = Discovery(
            config or pool(),
            registry=process.registry,
            sources=sources,
            changed=self._changed,
            observer=self.counts,
        )

    def _changed(self) -> None:
        self.changes += 1

    async def look(self) -> list[str]:
        await self.discovery.refresh()
        return self.names

    @property
    def names(self) -> list[str]:
        return [address.name for address in self.discovery.addresses]

    @property
    def problems(self) -> list[str]:
        return [problem.kind for problem in self.discovery.problems]


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[Process]:
    """On a database in memory: what the registry makes of each kind is tested beside it."""
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(SQLModel.metadata.create_all)
    yield Process(engine, Clock())
    await engine.dispose()


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    """One that has read its registrations, of which there are none."""
    async with in_memory() as found:
        await found.registry.refresh()
        yield found


async def test_it_is_told_once_that_nobody_is_missing(process: Process) -> None:
    """Also where that changes no address: until then others may know of members that are not found yet."""
    seen = Seen(process, Told(SourceFailed("no"), spotted(), spotted()))
    for _ in range(3):
        assert await seen.look() == []
    assert (seen.discovery.complete, seen.changes) == (True, 1)


async def test_registrations_that_were_not_read_yet_may_be_missing() -> None:
    """The first read tells that there are none, once."""
    async with in_memory() as unread:
        seen = Seen(unread)
        assert not seen.discovery.complete
        for _ in range(2):
            await unread.registry.refresh()
        assert (seen.discovery.complete, seen.changes) == (True, 1)


async def test_a_source_that_fails_takes_nobody_away(process: Process) -> None:
    """What it told last counts; it is told of and counted, also when it fails in a way that nobody thought of."""
    seen = Seen(process, Told(spotted("a", "b"), SourceFailed("no"), ValueError("odd"), TimeoutError(), spotted("b")))
    assert not seen.discovery.complete
    assert await seen.look() == ["a", "b"]
    for _ in range(3):
        assert await seen.look() == ["a", "b"]
        assert seen.problems == ["source_failed"]
    assert await seen.look() == ["b"]
    assert seen.problems == []
    assert seen.counts.looks == ["ok", "failed", "failed", "failed", "ok"]
    assert seen.changes == 2
    assert seen.discovery.complete


async def test_nobody_is_believed_when_it_was_said_twice(process: Process) -> None:
    """One empty answer between two others changes nothing."""
    seen = Seen(process, Told(spotted("a"), SourceResult(), spotted("a"), SourceResult(), SourceResult(), spotted("a")))
    assert await seen.look() == ["a"]
    assert await seen.look() == ["a"]
    assert seen.problems == ["source_empty"]
    assert await seen.look() == ["a"]
    assert seen.problems == []
    assert await seen.look() == ["a"]
    assert await seen.look() == []
    assert await seen.look() == ["a"]
    assert seen.counts.looks == ["ok", "empty", "ok", "empty", "empty", "ok"]


async def test_an_empty_pool_is_empty_at_once(process: Process) -> None:
    """Before anybody was there, an empty answer takes nobody away; a source that only failed told nothing."""
    seen = Seen(process, Told(SourceResult()))
    assert await seen.look() == []
    assert seen.problems == []
    assert seen.discovery.complete
    failing = Seen(process, Told(SourceFailed("no")))
    await failing.look()
    assert not failing.discovery.complete


async def test_every_kind_of_source_counts_and_an_order_drains_any(process: Process) -> None:
    """Configured, asked and registered ones together; orders and the replicas' own words alike."""
    config = pool(replicas=[{"name": "fixed", "url": "http://10.0.9.9:8000"}])
    seen = Seen(process, Told(spotted("asked")), config=config)
    await process.says("self", draining=True)
    await process.store.order("own", "fixed", "key_1")
    await process.registry.refresh()
    assert seen.changes == 1
    await seen.look()
    told = {address.name: (address.source, address.draining) for address in seen.discovery.addresses}
    assert told == {"fixed": ("configured", True), "asked": ("dns", False), "self": ("registered", True)}
    await process.store.take_back("own", "fixed")
    await process.registry.refresh()
    assert [address.name for address in seen.discovery.addresses if address.draining] == ["self"]


async def test_two_that_claim_one_name_are_told_and_counted_once(process: Process) -> None:
    """The first keeps it for as long as it is there; then the other has it."""
    config = pool(replicas=[{"name": "b", "url": "http://10.0.0.2:8000"}])
    await process.says("a", url="http://10.0.0.1:8000")
    await process.registry.refresh()
    other = SourceResult(
        replicas=(
            DiscoveredReplica(name="a", url="http://10.0.0.3:8000"),
            DiscoveredReplica(name="c", url="http://10.0.0.2:8000"),
        )
    )
    seen = Seen(process, Told(other), config=config)
    for _ in range(3):
        assert await seen.look() == ["a", "b"]
    urls = {address.name: address.url for address in seen.discovery.addresses}
    assert urls == {"a": "http://10.0.0.1:8000", "b": "http://10.0.0.2:8000"}
    assert sorted(seen.problems) == ["address_conflict", "name_conflict"]
    assert sorted(seen.counts.conflicts) == ["address", "name"]
    await process.store.leave("own", "a", "i1")
    await process.registry.refresh()
    assert {each.name: each.url for each in seen.discovery.addresses}["a"] == "http://10.0.0.3:8000"
    assert seen.problems == ["address_conflict"]


async def test_what_cannot_be_used_is_told(process: Process) -> None:
    """As long as the source says so."""
    seen = Seen(process, Told(SourceResult(unusable=("the Service has no port 1",)), spotted("a")))
    await seen.look()
    assert [(each.kind, each.text) for each in seen.discovery.problems] == [("unusable", "the Service has no port 1")]
    await seen.look()
    assert seen.problems == []


_names = st.sampled_from("abcd")
_urls = st.sampled_from([f"http://10.0.0.{at}:80" for at in range(4)])
_sources: list[SourceName] = ["configured", "dns", "kubernetes", "registered"]
_claims = st.lists(
    st.tuples(st.sampled_from(_sources), st.builds(DiscoveredReplica, name=_names, url=_urls, draining=st.booleans())),
    max_size=12,
)
Claims = Sequence[tuple[SourceName, DiscoveredReplica]]


@given(st.lists(_claims, max_size=4), st.sets(_names))
def test_a_replica_has_one_name_and_one_address_and_keeps_them(rounds: list[Claims], ordered: set[str]) -> None:
    """Whatever is claimed: no name and no address stands twice, who still claims what it had keeps it, and everybody
    who is left out is told of.
    """
    before: dict[str, Address] = {}
    for claims in rounds:
        found = merged("own", "vllm", claims, before, ordered)
        names = [each.name for each in found.addresses]
        assert names == sorted(set(names))
        assert len({each.url for each in found.addresses}) == len(names)
        now = {each.name: each for each in found.addresses}
        for name, had in before.items():
            if any(source == had.source and (claim.name, claim.url) == (name, had.url) for source, claim in claims):
                assert (now[name].url, now[name].source) == (had.url, had.source)
        for _, claim in claims:
            kept = now.get(claim.name)
            if kept is None or kept.url != claim.url:
                assert any(claim.url in problem.text for problem in found.problems)
            elif claim.draining or claim.name in ordered:
                assert kept.draining
        before = now


def test_a_pool_has_so_many_replicas() -> None:
    """The rest is left out and told of."""
    claims: list[tuple[SourceName, DiscoveredReplica]] = [
        ("dns", DiscoveredReplica(name=f"r{at}", url=f"http://10.0.{at // 250}.{at % 250}:80"))
        for at in range(MOST_REPLICAS + 2)
    ]
    found = merged("own", "vllm", claims, {})
    assert len(found.addresses) == MOST_REPLICAS
    assert [problem.kind for problem in found.problems] == ["too_many", "too_many"]


async def test_versions_are_known_by_word_or_by_name() -> None:
    """What a replica says itself counts before a pattern of names, and two sources complete each other."""
    config = pool(
        replicas=[
            {"name": "one", "url": "http://one:8000", "version": "v1"},
            {"name": "two", "url": "http://two:8000"},
        ],
        versions=[{"version": "v2", "replicas": "llama-v2-*"}, {"version": "v3", "replicas": "t*"}],
    )
    engine = create_async_engine("sqlite+aiosqlite://")
    process = Process(engine, Clock(), config)
    found = Discovery(config, registry=process.registry, sources=[Told(spotted("one", "llama-v2-x7k", "other"))])
    await found.refresh()
    assert {each.name: each.version for each in found.addresses} == {
        "llama-v2-x7k": "v2",
        "one": "v1",
        "other": "",
        "two": "v3",
    }
    await engine.dispose()


def _address(name: str, **fields: object) -> Address:
    told = {"pool": "p", "name": name, "url": f"http://{name}:8000", "kind": "vllm", "source": "dns", **fields}
    return Address(**told)  # type: ignore[arg-type]


def test_ranks_behind_an_address_are_replicas() -> None:
    """Each has its own name and rank, counted on from the first behind its address; they drain together, or one alone."""
    told = (_address("a", draining=True), _address("b", first_rank=2))
    found = ranked(told, 2, ordered={"b-dp1"})
    assert [(each.name, each.process, each.rank, each.engine_rank, each.draining) for each in found] == [
        ("a-dp0", "a", 0, 0, True),
        ("a-dp1", "a", 1, 1, True),
        ("b-dp0", "b", 0, 2, False),
        ("b-dp1", "b", 1, 3, True),
    ]
    assert ranked(told, 1) == told
    assert (told[0].process, told[0].engine_rank) == ("a", None)


async def test_a_pool_has_no_more_ranks_than_replicas(process: Process) -> None:
    """Its processes are fewer where each is many; the rest are told as left out."""
    names = tuple(f"n{number:04}" for number in range(MOST_REPLICAS // 64 + 1))
    config = pool().model_copy(update={"data_parallel_ranks": 64})
    seen = Seen(process, Told(spotted(*names)), config=config)
    await seen.discovery.refresh()
    assert len(seen.discovery.addresses) == MOST_REPLICAS // 64 * 64
    assert [each.kind for each in seen.discovery.problems] == ["too_many"]
