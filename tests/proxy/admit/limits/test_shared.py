"""The scripts in a real Redis beside their twin in Python: the same levels to the last bit."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.admit.limits.bucket import corrected, refilled
from proxy.admit.limits.limit import Limit
from proxy.admit.limits.limit_set import LimitSet, Outcome, bucket_key
from proxy.admit.limits.local import LocalBuckets, UnsentTake
from proxy.admit.limits.refusals import refusal
from proxy.admit.limits.shared import SharedBuckets, outcome_of
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.examples import examples
from tests.proxy.admit.limits.direct import CALLER, PREFIX, DirectLink, done, limit
from tests.redis_server import RedisServer

_START_US = 1_790_000_000_123_456
_MOMENTS = st.integers(0, 10**8)
# Seldom round, so that every rounding on the way shows.
_RATES = st.integers(1, 50_000)


class RedisClock:
    """Time as the scripts are told it."""

    def __init__(self) -> None:
        self.us = _START_US

    def __call__(self) -> bytes:
        return b"%d" % self.us


def _nobody(outcome: Outcome, holder: str) -> None:
    raise AssertionError("nobody hung up")


@pytest.fixture(scope="module")
def direct(redis_server: RedisServer) -> Iterator[DirectLink]:
    redis_server.empty()
    link = DirectLink(redis_server.url, healthy=True)
    yield link
    link.close()


@pytest.fixture
def link(direct: DirectLink) -> DirectLink:
    direct.redis.flushall()
    direct.redis.zadd(f"{PREFIX}holders", {direct.holder: 1})
    return direct


def _limits(changed: bool) -> tuple[Limit, ...]:
    """As they are at first, and as they are after a reload. Bursts stay above what is asked for at once."""
    more = 3 if changed else 1
    return (
        limit("requests", 7 * more, rate=61 // more, scope="organisation", whose="acme"),
        limit("tokens", 997 // more, rate=1009 * more),
        limit("requests", 13 // more),
        limit("concurrency", 5 - more),
        limit("tokens", 400 * more, rate=7919, scope="key", whose="key_1"),
    )


_Op = tuple[Literal["admit", "wait", "settle", "reload"], int]
_OPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 320)),
        st.tuples(st.just("wait"), st.integers(-50_000, 9_000_000)),
        st.tuples(st.just("settle"), st.integers(0, 700)),
        st.tuples(st.just("reload"), st.integers(0, 1)),
    ),
    max_size=40,
)


class Twins:
    """The same operations on both, compared after each."""

    def __init__(self, link: DirectLink) -> None:
        link.redis.flushall()
        link.redis.zadd(f"{PREFIX}holders", {link.holder: 1})
        self.link = link
        self.clock = RedisClock()
        self.shared = SharedBuckets(link, clock_us=self.clock)
        self.local = LocalBuckets()
        self.draw = LimitSet(_limits(False), PREFIX)
        self.open: list[tuple[LimitSet, int]] = []

    def do(self, op: _Op) -> None:
        name, amount = op
        getattr(self, f"_{name}")(amount)
        theirs = done(self.shared.peek(self.draw))
        mine = self.local.peek(self.draw, float(self.clock.us), 1)
        assert (list(theirs.figures), theirs.now_us) == (list(mine.figures), mine.now_us)

    def _admit(self, tokens: int) -> None:
        theirs = done(self.shared.admit(self.draw, tokens, _nobody))
        mine = self.local.admit(self.draw, tokens, float(self.clock.us), 1)
        assert (theirs.admitted, list(theirs.figures)) == (mine.admitted, list(mine.figures))
        if theirs.admitted:
            self.open.append((self.draw, tokens))
        else:
            told = [refusal(self.draw, each, tokens, 1, CALLER, "auto") for each in (theirs, mine)]
            assert told[0].message == told[1].message
            assert told[0].retry_after_s == told[1].retry_after_s

    def _wait(self, us: int) -> None:
        self.clock.us += us

    def _settle(self, used: int) -> None:
        if self.open:
            draw, taken = self.open.pop(0)
            self.shared.settle(draw, taken - used)
            self.local.end(draw)
            if taken != used:
                self.local.settle(draw, taken - used, float(self.clock.us), 1)

    def _reload(self, changed: int) -> None:
        self.draw = LimitSet(_limits(bool(changed)), PREFIX)


@settings(max_examples=examples(150), deadline=None)
@given(ops=_OPS)
@example(ops=[("admit", 200), ("wait", 1_000), ("settle", 201)])
def test_redis_and_python_agree_to_the_last_bit(direct: DirectLink, ops: list[_Op]) -> None:
    """Levels, refusals and waits, over admissions, settlements, time that goes on and limits that change."""
    twins = Twins(direct)
    for op in ops:
        twins.do(op)


def test_a_refusal_writes_nothing(link: DirectLink) -> None:
    """Not even a key: what refuses leaves everything as it was."""
    shared = SharedBuckets(link)
    draw = LimitSet((limit("requests", 5), limit("tokens", 5, scope="key"), limit("concurrency", 5)), PREFIX)
    assert not done(shared.admit(draw, 6, _nobody)).admitted
    assert link.redis.keys("*") == [f"{PREFIX}holders".encode()]


def test_every_key_goes_away_by_itself(link: DirectLink) -> None:
    """A bucket soon after it is full; with a debt, later."""
    shared = SharedBuckets(link)
    draw = LimitSet((limit("requests", 60), limit("tokens", 60), limit("concurrency", 5)), PREFIX)
    assert done(shared.admit(draw, 30, _nobody)).admitted
    shared.settle(draw, -60)
    shared.charge([UnsentTake(key="key/k//tokens", rate=60, burst=60, amount=30.0, known=0.0, told_us=-1.0)])
    assert done(shared.admit(draw, 0, _nobody)).admitted is False
    ttls = {key: link.redis.ttl(key) for key in link.redis.keys("*") if not key.endswith(b"holders")}
    assert all(0 < ttl <= 86_400 for ttl in ttls.values())
    assert ttls[bucket_key(PREFIX, "team/payments//requests")] in {60, 61}
    assert ttls[bucket_key(PREFIX, "team/payments//tokens")] in {149, 150}
    assert ttls[bucket_key(PREFIX, "key/k//tokens")] in {89, 90}


def test_a_holder_that_is_gone_counts_nothing(link: DirectLink) -> None:
    """What it sent is executed late; a place in flight would be lost for good."""
    shared = SharedBuckets(link)
    draw = LimitSet((limit("requests", 9), limit("concurrency", 9)), PREFIX)
    assert done(shared.admit(draw, 0, _nobody)).admitted
    link.redis.zrem(f"{PREFIX}holders", link.holder)
    with pytest.raises(Exception, match="NOHOLDER"):
        done(shared.admit(draw, 0, _nobody))
    with pytest.raises(Exception, match="NOHOLDER"):
        shared.count([("team/payments//concurrency", 1)])
    assert link.redis.get(f"{PREFIX}total:team/payments//concurrency") == b"1"
    link.redis.delete(f"{PREFIX}held:{link.holder}")
    shared.settle(draw, 0)
    assert link.redis.get(f"{PREFIX}total:team/payments//concurrency") == b"1"


def test_what_is_in_flight_is_counted_for_a_new_holder(link: DirectLink) -> None:
    """All of it, and later what could not be told in its time."""
    shared = SharedBuckets(link)
    done(shared.count_all(link, {"a": 3, "b": 1}))
    shared.count([("a", -2), ("b", -1), ("c", 4), ("d", -3)])
    held = link.redis.hgetall(f"{PREFIX}held:{link.holder}")
    assert held == {b"a": b"1", b"c": b"4"}
    assert [link.redis.get(f"{PREFIX}total:{key}") for key in "abcd"] == [b"1", None, b"4", None]
    assert all(link.redis.ttl(key) > 80_000 for key in (f"{PREFIX}held:{link.holder}", f"{PREFIX}total:a"))


def test_what_this_holder_does_not_hold_is_not_taken_from_others(link: DirectLink) -> None:
    """However much less it says there is."""
    link.redis.set(f"{PREFIX}total:d", 2)
    SharedBuckets(link).count([("d", -3)])
    assert link.redis.get(f"{PREFIX}total:d") == b"2"


def test_who_has_ended_leaves_nothing(link: DirectLink) -> None:
    """Neither a total nor a field of what is held."""
    shared = SharedBuckets(link)
    draw = LimitSet((limit("concurrency", 5),), PREFIX)
    assert done(shared.admit(draw, 0, _nobody)).admitted
    shared.settle(draw, 0)
    assert not link.redis.exists(f"{PREFIX}held:{link.holder}", f"{PREFIX}total:team/payments//concurrency")


def test_by_default_a_level_is_of_the_servers_clock(link: DirectLink) -> None:
    """To the microsecond: a second has a million of them, and none is taken away."""
    draw = LimitSet((limit("tokens", 60),), PREFIX)
    before = link.redis.time()
    SharedBuckets(link).settle(draw, -1)
    between = struct.unpack("<dd", link.redis.get(draw.settle_keys[0]))[1]
    after = link.redis.time()
    assert before[0] * 1_000_000 + before[1] <= between <= after[0] * 1_000_000 + after[1]


@given(amount=st.floats(-500, 500), level=st.floats(-3e3, 100), us=_MOMENTS, rate=_RATES)
@settings(max_examples=examples(200), deadline=None)
def test_a_charge_is_exact(direct: DirectLink, amount: float, level: float, us: int, rate: int) -> None:
    """The same operations as in Python; what is given back never fills above the burst."""
    direct.redis.flushall()
    clock = RedisClock()
    key = bucket_key(PREFIX, "k")
    direct.redis.set(key, struct.pack("<dd", level, float(clock.us)))
    then = float(clock.us)
    clock.us += us
    shared = SharedBuckets(direct, clock_us=clock)
    shared.charge([UnsentTake(key="k", rate=rate, burst=500, amount=amount, known=0.0, told_us=-1.0)])
    kept, at = struct.unpack("<dd", direct.redis.get(key))
    assert kept == corrected(refilled(level, then, float(clock.us), float(rate), 500.0), -amount, 500.0)
    assert at == clock.us


@given(correction=st.integers(1, 500), level=st.floats(-3e3, 100), us=_MOMENTS, rate=_RATES)
@settings(max_examples=examples(200), deadline=None)
def test_a_correction_is_exact(direct: DirectLink, correction: int, level: float, us: int, rate: int) -> None:
    """The same operations as in Python, for a bucket at any level."""
    direct.redis.flushall()
    clock = RedisClock()
    draw = LimitSet((limit("tokens", 10**6, rate=rate),), PREFIX)
    (key,) = draw.settle_keys
    direct.redis.set(key, struct.pack("<dd", level, float(clock.us)))
    then = float(clock.us)
    clock.us += us
    SharedBuckets(direct, clock_us=clock).settle(draw, correction)
    expected = corrected(refilled(level, then, float(clock.us), float(rate), 1e6), correction, 1e6)
    assert struct.unpack("<dd", direct.redis.get(key)) == (expected, float(clock.us))


def test_an_empty_bucket_fills_though_the_clock_was_set_back(link: DirectLink) -> None:
    """By an hour: who is refused then waits for as long as is told, and not for an hour."""
    clock = RedisClock()
    draw = LimitSet((limit("requests", 1, rate=60),), PREFIX)
    shared = SharedBuckets(link, clock_us=clock)
    assert done(shared.admit(draw, 0, _nobody)).admitted
    clock.us -= 3_600_000_000
    assert not done(shared.admit(draw, 0, _nobody)).admitted
    clock.us += 1_000_000
    assert done(shared.admit(draw, 0, _nobody)).admitted


def test_a_charge_whose_reply_was_lost_is_executed_once(link: DirectLink) -> None:
    """It is told again, because it may not have been; Redis knows its number."""
    clock = RedisClock()
    shared = SharedBuckets(link, clock_us=clock)
    owed = UnsentTake(key="k", rate=60, burst=100, amount=30.0, known=0.0, told_us=-1.0)

    def rows(born_us: float) -> Iterator[UnsentTake]:
        # The first question, since when Redis has its memory, was answered; this is the next call.
        link.fails = "late"
        yield owed

    with pytest.raises(Exception, match="late"):
        done(shared.charge_all(link, rows))
    done(shared.charge_all(link, lambda born_us: iter(())))
    assert struct.unpack("<dd", link.redis.get(bucket_key(PREFIX, "k"))) == (70.0, float(clock.us))
    done(shared.charge_all(link, lambda born_us: iter([owed])))
    assert struct.unpack("<dd", link.redis.get(bucket_key(PREFIX, "k"))) == (40.0, float(clock.us))


def test_a_redis_without_memory_believes_what_it_told_before(link: DirectLink) -> None:
    """Of two processes the one that heard the lower level, less what both took; who was told later says nothing."""
    clock = RedisClock()
    shared = SharedBuckets(link, clock_us=clock)
    told = float(clock.us - 1_000_000)
    rows = [
        UnsentTake(key="k", rate=60, burst=100, amount=amount, known=known, told_us=told_us)
        for amount, known, told_us in (
            (5.0, 40.0, told),
            (2.0, 38.0, told),
            (2.0, 20.0, told),
            (1.0, 0.0, float(clock.us + 1)),
            (1.0, 0.0, float(clock.us)),
        )
    ]
    levels = []
    for row in rows:
        shared.charge([row])
        levels.append(struct.unpack("<dd", link.redis.get(bucket_key(PREFIX, "k")))[0])
    assert levels == [36.0, 32.0, 12.0, 11.0, 10.0]


def test_what_was_given_back_is_no_charge_of_others(link: DirectLink) -> None:
    """What a process was told holds, less what was taken alone."""
    clock = RedisClock()
    shared = SharedBuckets(link, clock_us=clock)
    for amount, known, told_us in ((-5.0, 0.0, -1.0), (0.0, 40.0, float(clock.us - 1))):
        shared.charge([UnsentTake(key="k", rate=1, burst=100, amount=amount, known=known, told_us=told_us)])
    level = struct.unpack("<dd", link.redis.get(bucket_key(PREFIX, "k")))[0]
    assert level == pytest.approx(40.0, abs=1e-6)


def test_since_when_redis_has_its_memory_is_known_until_it_forgets(link: DirectLink) -> None:
    """However much later it is asked."""
    clock = RedisClock()
    shared = SharedBuckets(link, clock_us=clock)
    told: list[float] = []

    def rows(born_us: float) -> Iterator[UnsentTake]:
        told.append(born_us)
        return iter(())

    done(shared.charge_all(link, rows))
    clock.us += 5_000_000
    done(shared.charge_all(link, rows))
    link.redis.flushall()
    done(shared.charge_all(link, rows))
    assert told == [clock.us - 5_000_000, clock.us - 5_000_000, clock.us]


def test_no_limit_of_a_request_is_read_where_it_has_no_concurrency(link: DirectLink) -> None:
    """A holder is of no matter to rates, so it is not even looked at."""
    link.redis.delete(f"{PREFIX}holders")
    assert done(SharedBuckets(link).admit(LimitSet((limit("requests", 5),), PREFIX), 0, _nobody)).admitted


def test_replies_are_doubles() -> None:
    """Nothing is rounded on the way."""
    assert outcome_of(struct.pack("<4d", 1.0, 5.0, 0.1 + 0.2, -1e-17)) == Outcome(True, 5.0, [0.1 + 0.2, -1e-17])


@pytest.fixture
async def four(empty_redis: RedisServer) -> AsyncIterator[list[RedisLink]]:
    """Four processes' links, all in this one."""
    section = RedisSection(prefix=PREFIX, timeout_s=2.0, slow_s=1.0, connect_timeout_s=2.0)
    links = [RedisLink(empty_redis.url, section, f"boot{number}") for number in range(4)]
    async with AsyncExitStack() as stack:
        for each in links:
            stack.push_async_callback(each.aclose)
            await each.start()
        yield links


async def test_four_processes_never_exceed_the_limit_and_use_it(four: list[RedisLink]) -> None:
    """In no window more than limit + burst, and at least 98 % of it when there is demand."""
    clock = RedisClock()
    replicas = [SharedBuckets(each, clock_us=clock) for each in four]
    draw = LimitSet((limit("tokens", 200, rate=6_000), limit("requests", 60_000, scope="key")), PREFIX)
    tokens = (7, 13, 29)
    taken: list[tuple[int, int]] = []
    for _ in range(150):
        asked = [(each, amount) for each in replicas for amount in tokens]
        outcomes = await asyncio.gather(*(each.admit(draw, amount, _nobody) for each, amount in asked))
        taken += [(clock.us, amount) for (_, amount), outcome in zip(asked, outcomes, strict=True) if outcome.admitted]
        clock.us += 100_000
    per_us = 6_000 / 60e6
    for first, (begun, _) in enumerate(taken):
        used = 0
        for (at, amount), later in pairwise([*taken[first:], (0, 0)]):
            used += amount
            if later[0] != at:
                assert used <= 200 + (at - begun) * per_us + 1e-6
    assert sum(amount for _, amount in taken) >= 0.98 * (200 + 149 * 100_000 * per_us)
