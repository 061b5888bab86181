"""How processes divide what a queue's targets carry."""

import asyncio
import random
import time

import msgspec
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admit.queues.capacity import REST, Capacity, Record, TeamUse, Use, agreed, divided, parts, since
from proxy.admit.queues.queues_config import QueueConfig
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import SharedStateUnavailable
from tests.examples import examples
from tests.proxy.admit.queues.book import Book, BookLink
from tests.redis_server import RedisServer

_NAMES = ("p:1", "p:2", "q:1", "r:10", "r:9")
_TEAM = st.builds(
    TeamUse,
    team=st.sampled_from(("0000000a", "0000000b", "0000000c", REST)),
    weight=st.sampled_from((1, 500, 1_000, 2_500)),
    tokens=st.integers(0, 3_000),
)
_RECORD = st.builds(
    Record,
    demand=st.integers(0, 2_000),
    held=st.integers(0, 1_500),
    large=st.one_of(st.just(0), st.integers(1, 3_000)),
    since_ms=st.one_of(st.integers(1, 5_000), st.integers(10**13, 10**13 + 5_000)),
    whole=st.one_of(st.just(0), st.integers(1, 5_000)),
    teams=st.lists(_TEAM, max_size=4, unique_by=lambda use: use.team).map(tuple),
)
_RECORDS = st.dictionaries(st.sampled_from(_NAMES), _RECORD, min_size=1)


def config(tokens: int = 1_000, requests: int | None = None) -> QueueConfig:
    return QueueConfig(targets=("own",), tokens_in_flight=tokens, requests_in_flight=requests)


@given(_RECORDS, st.integers(1, 5_000))
def test_parts_are_all_of_it_and_max_min_fair(records: dict[str, Record], capacity: int) -> None:
    """Nobody has less than it asks for while another has more than an equal part and one token more than it."""
    plain = {name: Record(each.demand, each.held) for name, each in records.items()}
    fair = parts(plain, capacity)
    assert sum(fair.values()) == capacity
    for name, part in fair.items():
        if part < plain[name].demand:
            assert all(other <= part + 1 for other in fair.values())


@given(_RECORDS, st.integers(1, 5_000))
def test_one_request_that_fits_nowhere_goes_first(records: dict[str, Record], capacity: int) -> None:
    """The longest waiting of them gets as much as it needs, and the parts are still all of it."""
    fair = parts(records, capacity)
    assert sum(fair.values()) == capacity
    plain = parts({name: msgspec.structs.replace(each, large=0) for name, each in records.items()}, capacity)
    large = {name: each.since_ms for name, each in records.items() if each.large > plain[name]}
    if large:
        assert any(
            fair[name] == min(records[name].large, capacity) for name, ms in large.items() if ms == min(large.values())
        )


@given(
    st.dictionaries(
        st.sampled_from(_NAMES), st.dictionaries(st.sampled_from("abc"), st.integers(0, 2_000)), min_size=1, max_size=4
    ),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from((500, 1_000, 4_000))),
    st.integers(1, 5_000),
)
def test_a_team_gets_its_share_whichever_processes_it_met(
    waiting: dict[str, dict[str, int]], weights: dict[str, int], capacity: int
) -> None:
    """Between teams it is divided by weight over all processes, and within a team by where it waits, to a few tokens."""

    def record(uses: dict[str, int]) -> Record:
        teams = tuple(TeamUse(team, weights.get(team, 1_000), tokens) for team, tokens in uses.items())
        return Record(sum(uses.values()), 0, teams=teams)

    fair = parts({name: record(uses) for name, uses in waiting.items()}, capacity)
    assert sum(fair.values()) == capacity
    totals = {team: sum(uses.get(team, 0) for uses in waiting.values()) for team in "abc"}
    ideal, left, weight = (
        {},
        float(capacity),
        sum(weights.get(team, 1_000) for team, tokens in totals.items() if tokens),
    )
    for team in sorted(totals, key=lambda each: totals[each] / weights.get(each, 1_000)):
        if totals[team]:
            ideal[team] = min(totals[team], left * weights.get(team, 1_000) / weight)
            left -= ideal[team]
            weight -= weights.get(team, 1_000)
    for name, uses in waiting.items():
        meant = sum(ideal[team] * tokens / totals[team] for team, tokens in uses.items() if tokens) + left / len(
            waiting
        )
        assert fair[name] == pytest.approx(meant, abs=12)


def test_callers_of_a_busy_process_wait_no_longer_than_others() -> None:
    """One team's work is shared by where it waits; a team that floods one process takes nothing from one in another."""
    one = {
        "a": Record(900, 0, teams=(TeamUse("t", 1_000, 900),)),
        "b": Record(300, 0, teams=(TeamUse("t", 1_000, 300),)),
    }
    assert parts(one, 400) == {"a": 300, "b": 100}
    two = {
        "a": Record(9_000, 0, teams=(TeamUse("t", 1_000, 9_000),)),
        "b": Record(180, 0, teams=(TeamUse("u", 1_000, 180),)),
    }
    assert parts(two, 400) == {"a": 220, "b": 180}


def test_processes_that_know_different_sizes_divide_one() -> None:
    """The middle one, so that one process that sees no replica, or too many, changes nothing; of two the larger."""
    assert (
        agreed({name: Record(0, 0, whole=whole) for name, whole in zip("abc", (1, 990, 1_000), strict=True)}, 5) == 990
    )
    assert agreed({"a": Record(0, 0, whole=990), "b": Record(0, 0, whole=1_000)}, 5) == 1_000
    assert agreed({"a": Record(0, 0), "b": Record(0, 0, whole=3)}, 5) == 5


class _Process:
    """One that uses what it is given: what is over its part ends, and it starts what it wants."""

    def __init__(self) -> None:
        self.limit = 0
        self.in_flight = 0
        self.wants = 0

    @property
    def held(self) -> int:
        return max(self.limit, self.in_flight)

    def start(self) -> None:
        self.in_flight += max(0, min(self.wants, self.limit) - self.in_flight)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_no_more_is_in_flight_than_there_is_and_nothing_stays_idle(seed: int) -> None:
    """Whatever processes want, whenever they ask, the sum is kept; two beats after all have told it, it is given."""
    rng = random.Random(seed)
    capacity, processes = 1_000, {name: _Process() for name in _NAMES}
    written: dict[str, Record] = {}

    def ask(name: str) -> None:
        one = processes[name]
        records = {**written, name: Record(max(one.wants, one.in_flight), one.held)}
        given = divided(records, name, capacity, capacity)
        one.limit = given.limit
        written[name] = Record(records[name].demand, given.held)

    for _ in range(100):
        one = processes[rng.choice(_NAMES)]
        match rng.randrange(4):
            case 0:
                one.wants = rng.choice((0, 10, 300, 5_000))
            case 1:
                one.in_flight = rng.randint(0, one.in_flight)
            case 2:
                one.start()
            case _:
                ask(rng.choice(_NAMES))
        assert sum(each.in_flight for each in processes.values()) <= capacity
        assert sum(each.limit for each in processes.values()) <= capacity
        assert sum(each.held for each in written.values()) <= capacity
    for one in processes.values():
        one.in_flight = min(one.in_flight, one.wants)
    for _ in range(3):
        for name in _NAMES:
            # A process asks twice when it must give back, as `Capacity` does; meanwhile its work ends.
            ask(name)
            processes[name].in_flight = min(processes[name].in_flight, processes[name].limit)
            ask(name)
    for one in processes.values():
        one.start()
    wanted = sum(each.wants for each in processes.values())
    assert sum(each.in_flight for each in processes.values()) == min(wanted, capacity)
    fair = parts({name: Record(each.wants, 0) for name, each in processes.items()}, capacity)
    assert {name: each.limit for name, each in processes.items()} == fair


def test_the_script_does_as_the_twin(redis_server: RedisServer) -> None:
    """Lua and Python give the same parts and write the same down, whatever was asked before."""
    client = redis.Redis.from_url(redis_server.url)
    run = client.register_script(script("divide").text)
    keys = ("{t}:queue:own", "{t}:holders", "{t}:queue:own:teams")

    def teams(each: Record) -> str:
        return ";".join(f"{use.team},{use.weight},{use.tokens}" for use in each.teams)

    @settings(max_examples=examples(150), deadline=None)
    @given(_RECORDS, st.integers(1, 5_000), st.integers(1, 2_000), st.data())
    def same(records: dict[str, Record], capacity: int, most: int, data: st.DataObject) -> None:
        client.flushall()
        me = data.draw(st.sampled_from(sorted(records)))
        client.zadd(keys[1], dict.fromkeys(records, 1.0))
        for name, each in records.items():
            if name != me:
                client.hset(keys[0], name, f"{each.demand}:{each.held}:{each.large}:0")
                client.hset(keys[2], name, f"{each.since_ms};{each.whole};{teams(each)}")
        # One that is gone holds nothing.
        client.hset(keys[0], "gone:1", "500:500:0:0")
        client.hset(keys[2], "gone:1", "1;500;0000000a,1000,500")
        mine = records[me]

        def told() -> bytes:
            found = client.hget(keys[2], me)
            assert isinstance(found, bytes)
            return found

        reply = run(keys, (me, capacity, mine.demand, mine.held, mine.large, 7, most, teams(mine)))
        # Now, between the moments that the others tell.
        records[me] = msgspec.structs.replace(mine, whole=capacity, since_ms=10**12 if mine.large else 0)
        given = divided(records, me, capacity, most)
        assert reply == [given.limit, given.whole]
        assert client.hget(keys[0], me) == f"{mine.demand}:{given.held}:{mine.large}:7".encode()
        began, rest = told().split(b";", 1)
        assert rest == f"{capacity};{teams(mine)}".encode()
        assert abs(int(began) - time.time() * 1000) < 60_000 if mine.large else began == b"0"
        # The same request keeps its place, whatever little its process is late to say.
        run(keys, (me, capacity, mine.demand, mine.held, mine.large, 90, most, teams(mine)))
        assert told().split(b";")[0] == began
        assert not any(client.hexists(key, "gone:1") for key in (keys[0], keys[2]))

    try:
        same()
        client.zrem(keys[1], *_NAMES)
        with pytest.raises(redis.ResponseError, match="NOHOLDER"):
            run(keys, ("p:1", 10, 1, 1, 0, 0, 10, ""))
    finally:
        client.flushall()
        client.close()


class _Part:
    """One process's capacity, and what it says that it uses."""

    def __init__(self, book: Book, holder: str, live: int) -> None:
        self.now = 0.0
        self.live = live
        self.in_flight = 0
        self.wanted = 0
        self.changes = 0
        self.link = BookLink(book, holder)
        self.capacity = Capacity(lambda: self.live, self.link, clock=lambda: self.now)
        self.capacity.watch(self._use, self._changed)
        self.capacity.adopt({"own": config()})

    @property
    def tokens(self) -> int:
        return self.capacity.room("own").tokens

    def _use(self, name: str) -> Use:
        return Use(in_flight=self.in_flight, wanted=self.wanted, large=0, waited_s=0.0)

    def _changed(self) -> None:
        self.changes += 1


def test_a_process_that_is_alone_has_everything() -> None:
    """With neither Redis nor others nothing is divided, and the count of requests is whole as well."""
    capacity = Capacity(lambda: 1, clock=lambda: 0.0)
    capacity.adopt({"own": config(requests=7)})
    room = capacity.room("own")
    assert (room.tokens, room.requests, room.alone) == (1_000, 7, True)


async def test_without_redis_each_has_an_equal_part() -> None:
    """It follows how many live, and is never nothing."""
    live = 4
    capacity = Capacity(lambda: live, clock=lambda: 0.0)
    capacity.adopt({"own": config(requests=7), "small": config(3)})
    assert (capacity.room("own").tokens, capacity.room("own").requests) == (250, 1)
    assert capacity.room("small").tokens == 1
    live = 2
    await capacity.beat()
    assert (capacity.room("own").tokens, capacity.room("own").requests) == (500, 3)


async def test_with_redis_the_busy_one_has_nearly_everything() -> None:
    """After it settled, it is given what the others do not use; they get an equal part once they want it."""
    book = Book()
    busy, other = _Part(book, "a:1", 2), _Part(book, "b:1", 2)
    await busy.link.come()
    await other.link.come()
    busy.now = other.now = 10
    busy.wanted = 5_000
    for _ in range(2):
        await other.capacity.beat()
        await busy.capacity.beat()
    assert (busy.tokens, other.tokens) == (1_000, 0)
    assert busy.capacity.room("own").alone
    assert not other.capacity.room("own").alone
    assert other.capacity.room("own").usual == 500
    busy.in_flight, other.wanted = 1_000, 5_000
    await busy.capacity.beat()
    await other.capacity.beat()
    assert other.tokens == 0
    await busy.capacity.beat()
    busy.in_flight = 600
    await busy.capacity.beat()
    await other.capacity.beat()
    assert (busy.tokens, other.tokens) == (500, 400)


async def test_a_process_that_comes_is_given_nothing_that_others_use() -> None:
    """Its first part is what is left, however many were counted."""
    book = Book()
    old = _Part(book, "a:1", 1)
    await old.link.come()
    old.in_flight = old.wanted = 900
    await old.capacity.beat()
    fresh = _Part(book, "b:1", 2)
    assert fresh.tokens == 500
    await fresh.link.come()
    assert fresh.tokens == 0
    assert fresh.changes > 0


async def test_an_outage_leaves_an_equal_part_until_redis_is_back() -> None:
    """Then what is in flight counts first, and for a while nobody asks for more than an equal part."""
    book = Book()
    one, two = _Part(book, "a:1", 2), _Part(book, "b:1", 2)
    await one.link.come()
    await two.link.come()
    one.now = two.now = 10
    one.in_flight = one.wanted = 800
    await two.capacity.beat()
    await one.capacity.beat()
    assert one.tokens > 500
    book.down = True
    await one.capacity.beat()
    assert one.tokens > 500
    one.link.go()
    two.link.go()
    assert (one.tokens, two.tokens) == (500, 500)
    with pytest.raises(SharedStateUnavailable):
        await one.link.come()
    assert one.tokens == 500
    book.down, book.written = False, {}
    one.link.holder = "a:2"
    one.in_flight = one.wanted = 400
    await one.link.come()
    # The other one is not back and still works with its equal part.
    assert one.tokens == 500
    one.now = 13
    one.wanted = 5_000
    await one.capacity.beat()
    assert one.tokens == 1_000


async def test_a_reply_of_a_connection_that_is_gone_changes_nothing() -> None:
    """What it gave is not ours any more."""
    book = Book()
    one = _Part(book, "a:1", 2)
    await one.link.come()
    one.now = 10
    beat = asyncio.ensure_future(one.capacity.beat())
    await asyncio.sleep(0)
    one.link.go()
    one.wanted = 5_000
    await beat
    assert one.tokens == 500


async def test_a_queue_that_is_no_more_is_given_back() -> None:
    """Nothing is kept for it in Redis, and a new one begins with what is asked for."""
    book = Book()
    one = _Part(book, "a:1", 1)
    await one.link.come()
    assert book.written
    one.capacity.adopt({})
    assert not book.written
    one.capacity.adopt({"own": config(2_000)})
    assert one.tokens == 0
    await one.capacity.beat()
    assert one.tokens > 0


def test_who_began_to_wait_first_is_the_same_for_all() -> None:
    """However late each process says for how long its request has waited."""
    assert since(1, 250, 0, 5_000) == 4_750
    assert since(1, 490, 4_750, 5_250) == 4_750
    assert since(1, 100, 4_750, 9_000) == 8_900
    assert since(0, 0, 4_750, 9_000) == 0


async def test_four_processes_on_a_real_redis_share_by_demand(empty_redis: RedisServer) -> None:
    """The sum is kept at every moment, one that needs all gets it, and one that is gone leaves its part."""
    links = [RedisLink(empty_redis.url, RedisSection(), f"boot{number}") for number in range(4)]
    parts_of = [_real(link) for link in links]
    try:
        for link in links:
            await link.start()
        assert all(link.healthy for link in links)
        await _beats(parts_of, [400] * 4)
        assert [part.tokens for part in parts_of] == [250] * 4
        await _beats(parts_of, [400, 40, 40, 40])
        assert parts_of[0].tokens > 500
        assert sum(each.tokens for each in parts_of) == 1_000
        for link in links[1:]:
            await link.aclose()
        parts_of[0].wanted = 5_000
        await parts_of[0].capacity.beat()
        assert parts_of[0].tokens == 1_000
    finally:
        for link in links:
            await link.aclose()


def _real(link: RedisLink) -> _Part:
    part = _Part(Book(), "", 4)
    part.capacity = Capacity(lambda: 4, link, clock=lambda: part.now)
    part.capacity.watch(part._use, part._changed)
    part.capacity.adopt({"own": config()})
    return part


async def _beats(parts_of: list[_Part], wanted: list[int]) -> None:
    for part, tokens in zip(parts_of, wanted, strict=True):
        part.now, part.wanted = 10, tokens
    for _ in range(2):
        for part in parts_of:
            await part.capacity.beat()
            assert sum(each.tokens for each in parts_of) <= 1_000
