"""The limiter: Redis decides, or a share of each limit, and nothing is forgotten or counted twice in between."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounts.caller import Caller
from proxy.admit.limits.limit import Admission, Kind, Limit, Scope
from proxy.admit.limits.limiter import MAX_USED_TOKENS, BucketLimiter, LimitObserver, Mode
from proxy.admit.limits.refusals import RateLimited
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.cost.entries import until
from tests.examples import examples
from tests.proxy.admit.limits.direct import CALLER, PREFIX, DirectLink, done, limit, told_of
from tests.redis_server import RedisServer
from tests.toxic import toxic_proxy

_START_S = 1_790_000_000.0
_PATIENCE_S = 20.0
_SECTION = RedisSection(prefix=PREFIX, timeout_s=0.5, slow_s=0.3, probe_s=0.05, connect_timeout_s=1.0)


class Clock:
    """The processes' and Redis's."""

    def __init__(self) -> None:
        self.now = _START_S

    def __call__(self) -> float:
        return self.now

    def us(self) -> bytes:
        return b"%d" % round(self.now * 1e6)


class Watched(LimitObserver):
    """Counts what a limiter tells."""

    def __init__(self) -> None:
        self.local = 0
        self.refused: Counter[tuple[Scope, Kind]] = Counter()
        self.shared: list[bool] = []

    def count_local_admission(self) -> None:
        self.local += 1

    def count_rate_refusal(self, scope: Scope, kind: Kind) -> None:
        self.refused[scope, kind] += 1

    def set_limits_shared(self, *, shared: bool) -> None:
        self.shared.append(shared)


class Book:
    """The same limits for everybody, until they are changed."""

    def __init__(self, *limits: Limit) -> None:
        self.limits = limits

    def __call__(self, caller: Caller, model: str, end_user: str) -> tuple[Limit, ...]:
        return self.limits


class Stage:
    """Some processes with one Redis, and a time that goes on when a test says so."""

    def __init__(self, url: str, count: int, book: Book, *, seen: Callable[[], int] | None = None) -> None:
        self.clock = Clock()
        self.links = [DirectLink(url, f"boot{number}") for number in range(count)]
        self.watched = [Watched() for _ in self.links]
        self.book = book
        self.limiters = [
            BucketLimiter(
                book,
                seen or (lambda: count),
                link=link,
                observer=watched,
                clock=self.clock,
                rejoin_s=3_600,
                redis_clock_us=self.clock.us,
            )
            for link, watched in zip(self.links, self.watched, strict=True)
        ]

    async def find(self) -> None:
        for link in self.links:
            await link.find()

    def lose(self) -> None:
        for link in self.links:
            link.lose()

    def rejoin(self) -> None:
        """The moment has passed in which all go on by their share."""
        for limiter in self.limiters:
            limiter._rejoin()

    async def admit(self, number: int = 0, tokens: int = 0) -> Admission | None:
        with contextlib.suppress(RateLimited):
            return await self.limiters[number].admit(CALLER, "auto", tokens)
        return None

    async def left(self, number: int = 0) -> list[int]:
        return [each.remaining for each in await self.limiters[number].peek(self.book.limits)]

    def close(self) -> None:
        for limiter in self.limiters:
            limiter.close()
        for link in self.links:
            link.close()


@pytest.fixture
def staged(empty_redis: RedisServer) -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(count: int, book: Book, **options: Callable[[], int]) -> Stage:
        stages.append(Stage(empty_redis.url, count, book, **options))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def alone(*limits: Limit, live: int = 1, clock: Callable[[], float] | None = None) -> BucketLimiter:
    return BucketLimiter(Book(*limits), lambda: live, clock=clock or Clock())


async def test_without_limits_nothing_is_asked_and_nothing_is_told(staged: Callable[..., Stage]) -> None:
    """One admission serves all who fall under no limit."""
    stage = staged(1, Book())
    await stage.find()
    stage.links[0].fails = "error"
    first, second = await stage.admit(tokens=10**9), await stage.admit()
    assert first is not None
    assert first is second
    first.settle(5)
    assert not first.lines
    assert stage.links[0].fails == "error"


async def test_one_process_without_redis_is_exact() -> None:
    """It counts nothing as a share."""
    watched = Watched()
    limiter = BucketLimiter(Book(limit("requests", 2)), lambda: 1, observer=watched, clock=Clock())
    for left in (1, 0):
        assert (await limiter.admit(CALLER, "auto", 0)).lines == told_of("requests", 2, left, (2 - left) * 30.0)
    with pytest.raises(RateLimited) as refused:
        await limiter.admit(CALLER, "auto", 0)
    assert refused.value.retry_after_s == pytest.approx(30.0)
    assert (limiter.mode, watched.local, watched.shared) == ("process", 0, [False])
    assert watched.refused == {("team", "requests"): 1}


async def test_several_processes_without_redis_enforce_their_share() -> None:
    """And each such decision is counted."""
    watched = Watched()
    limiter = BucketLimiter(Book(limit("requests", 8)), lambda: 4, observer=watched, clock=Clock())
    told = [(await limiter.admit(CALLER, "auto", 0)).lines for _ in range(2)]
    with pytest.raises(RateLimited, match="one of 4 shares of 8"):
        await limiter.admit(CALLER, "auto", 0)
    assert told[-1] == told_of("requests", 2, 0, 60.0)
    assert (limiter.mode, limiter.live, watched.local) == ("share", 4, 3)


async def test_an_admission_settles_once_and_within_bounds() -> None:
    """A refund, a debt, a negative figure and an absurd one."""
    clock = Clock()
    limiter = alone(limit("tokens", 1_000), clock=clock)
    limits = limiter._limits_of(CALLER, "auto", "")
    admission = await limiter.admit(CALLER, "auto", 800)
    admission.settle(300)
    admission.settle(0)
    assert (await limiter.peek(limits))[0].remaining == 700
    (await limiter.admit(CALLER, "auto", 100)).settle(-5_000)
    assert (await limiter.peek(limits))[0].remaining == 700
    (await limiter.admit(CALLER, "auto", 0)).settle(10**30)
    assert (await limiter.peek(limits))[0].reset_s == pytest.approx((MAX_USED_TOKENS + 300) * 60 / 1_000)
    (await alone(limit("tokens", 5)).admit(CALLER, "auto", -3)).settle(0)


async def test_what_can_never_fit_is_refused_without_asking(staged: Callable[..., Stage]) -> None:
    """It takes nothing, and is not to be tried again."""
    stage = staged(1, Book(limit("tokens", 100), limit("tokens", 50, scope="key")))
    await stage.find()
    stage.links[0].fails = "error"
    with pytest.raises(RateLimited) as refused:
        await stage.limiters[0].admit(CALLER, "auto", 51)
    assert (refused.value.should_retry, refused.value.scope) == (False, "key")
    assert stage.links[0].fails == "error"


async def test_redis_tells_all_processes_the_same_figures(staged: Callable[..., Stage]) -> None:
    """What remains is what remains for all together, after this request."""
    stage = staged(2, Book(limit("requests", 10), limit("tokens", 1_000), limit("concurrency", 4)))
    await stage.find()
    first = await stage.admit(0, 100)
    second = await stage.admit(1, 300)
    assert first is not None
    assert second is not None
    assert second.lines == told_of("requests", 10, 8, 12.0) + told_of("tokens", 1_000, 600, 24.0)
    assert await stage.left(0) == [8, 600, 2]
    first.settle(50)
    second.settle(350)
    assert await stage.left(1) == [8, 600, 4]
    assert [each.mode for each in stage.limiters] == ["shared", "shared"]
    assert [each.local for each in stage.watched] == [0, 0]


async def test_changed_limits_keep_what_was_taken(staged: Callable[..., Stage]) -> None:
    """In Redis as in the process."""
    stage = staged(1, Book(limit("tokens", 100)))
    await stage.find()
    await stage.admit(tokens=90)
    stage.book.limits = (limit("tokens", 1_000),)
    assert await stage.left() == [10]
    stage.book.limits = (limit("tokens", 4),)
    assert await stage.left() == [4]


async def test_one_failed_call_is_decided_by_the_share(staged: Callable[..., Stage]) -> None:
    """Nobody waits twice for a Redis that did not answer, and what was taken meanwhile is told to it."""
    stage = staged(2, Book(limit("requests", 10), limit("concurrency", 4)))
    await stage.find()
    stage.links[0].fails = "busy"
    admission = await stage.admit()
    assert admission is not None
    assert admission.lines == told_of("requests", 5, 4, 12.0)
    assert (stage.limiters[0].mode, stage.watched[0].local) == ("share", 1)
    assert stage.limiters[1].mode == "shared"
    assert await stage.left(1) == [10, 4]
    stage.rejoin()
    assert stage.limiters[0].mode == "shared"
    assert await stage.left(1) == [9, 3]
    admission.settle(0)
    assert await stage.left(1) == [9, 4]
    assert stage.watched[0].shared == [False, True, False, True]


async def test_corrections_follow_their_tokens_through_an_outage(staged: Callable[..., Stage]) -> None:
    """Taken from Redis and settled without it, and the other way round."""
    stage = staged(1, Book(limit("tokens", 1_000), limit("concurrency", 3)))
    await stage.find()
    before = await stage.admit(tokens=500)
    stage.lose()
    during = await stage.admit(tokens=200)
    assert before is not None
    assert during is not None
    before.settle(100)
    await stage.find()
    stage.rejoin()
    assert await stage.left() == [700, 2]
    during.settle(250)
    assert await stage.left() == [650, 3]


async def test_places_are_counted_again_for_a_new_holder(staged: Callable[..., Stage]) -> None:
    """Exactly those that run, whether they began before, during or after the outage."""
    stage = staged(2, Book(limit("concurrency", 6)))
    await stage.find()
    before = [await stage.admit() for _ in range(4)]
    stage.links[0].lose()
    for each in before[:3]:
        assert each is not None
        each.settle(0)
    during = [await stage.admit() for _ in range(3)]
    # Three is this process's share of six: one runs since before, and two begin now.
    assert [each is not None for each in during] == [True, True, False]
    await stage.links[0].find()
    assert await stage.left(1) == [3]
    late = await stage.admit()
    assert late is None
    assert during[0] is not None
    during[0].settle(0)
    stage.rejoin()
    assert await stage.left(1) == [4]
    for each in (*before[3:], during[1]):
        assert each is not None
        each.settle(0)
    assert await stage.left(0) == [6]


async def test_while_others_may_still_be_away_the_share_goes_on(staged: Callable[..., Stage]) -> None:
    """Redis counts too few processes then, and does not know what the others took."""
    seen = [3]
    stage = staged(3, Book(limit("requests", 30)), seen=lambda: seen[0])
    await stage.find()
    stage.lose()
    for number in range(3):
        assert [await stage.admit(number) is not None for _ in range(11)].count(True) == 10
    await stage.links[0].find()
    seen[0] = 1
    assert stage.limiters[0].live == 3
    assert await stage.admit(0) is None
    await stage.links[1].find()
    await stage.links[2].find()
    stage.rejoin()
    assert await stage.left(0) == [0]
    assert stage.limiters[0].live == 1


async def test_a_start_without_redis_works_the_same(staged: Callable[..., Stage]) -> None:
    """The share at once, and Redis once it is there; what was taken before is charged."""
    stage = staged(2, Book(limit("requests", 10)))
    assert stage.limiters[0].mode == "share"
    assert [await stage.admit(0) is not None for _ in range(6)] == [True] * 5 + [False]
    await stage.find()
    # The second one has decided nothing yet and was never without Redis: nothing keeps it from going there.
    assert [each.mode for each in stage.limiters] == ["share", "shared"]
    stage.rejoin()
    assert await stage.left(1) == [5]


async def test_a_redis_that_lost_its_memory_does_not_give_the_limit_again(staged: Callable[..., Stage]) -> None:
    """It is told what it had told, and what was taken since."""
    stage = staged(2, Book(limit("requests", 20), limit("tokens", 600)))
    await stage.find()
    for number in (0, 1) * 5:
        assert await stage.admit(number, 30)
    stage.lose()
    stage.links[0].redis.flushall()
    stage.clock.now += 0.001
    assert await stage.admit(0, 10)
    await stage.find()
    stage.rejoin()
    assert await stage.left(1) == [9, 290]


_Step = tuple[str, int]


@settings(max_examples=examples(40), deadline=None)
@example(before=[0] * 14, during=[], after=[0] * 30, forgets=True)
@given(
    before=st.lists(st.integers(0, 2), max_size=80),
    during=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1_500)), max_size=80),
    after=st.lists(st.integers(0, 2), max_size=80),
    forgets=st.booleans(),
)
def test_over_an_outage_all_together_stay_within_the_limit(
    redis_server: RedisServer, before: list[int], during: list[tuple[int, int]], after: list[int], forgets: bool
) -> None:
    """Whoever asks for how much, and when: limit x time + burst, and what one had not yet heard of the others' last ones."""
    redis_server.empty()
    book = Book(limit("requests", 30, rate=600))
    stage = Stage(redis_server.url, 3, book)

    async def story() -> int:
        await stage.find()
        count = 0
        for number in (*before, 0, 1, 2):
            count += await stage.admit(number) is not None
        begun = stage.clock.now
        stage.lose()
        if forgets:
            stage.links[0].redis.flushall()
            # A Redis that begins anew does so later than anything it told before: what is told by which is known by time.
            stage.clock.now += 0.001
        for number, wait_ms in during:
            count += await stage.admit(number) is not None
            stage.clock.now += wait_ms / 1000
        await stage.find()
        stage.rejoin()
        for number in after:
            count += await stage.admit(number) is not None
        assert count <= 30 + (stage.clock.now - begun) * 10 + 1 + 1e-6
        return count

    try:
        asyncio.run(story())
    finally:
        stage.close()


# From here on with the real link, and real time.


async def eventually(happens: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            if await happens():
                return
            await asyncio.sleep(0.01)


class Fleet:
    """Processes with a real link each, all in this one."""

    def __init__(self, limiters: list[BucketLimiter], book: Book) -> None:
        self.limiters = limiters
        self.book = book
        self.admitted = 0

    async def press(self, number: int, until: Callable[[], bool]) -> None:
        """Asks again and again, and ends what it gets at once."""
        while not until():
            try:
                admission = await self.limiters[number].admit(CALLER, "auto", 0)
            except RateLimited:
                await asyncio.sleep(0.004)
            else:
                self.admitted += 1
                admission.settle(0)

    async def until_shared(self) -> None:
        await self.until_all("shared")

    async def until_all(self, mode: Mode) -> None:
        async def are() -> bool:
            return all(limiter.mode == mode for limiter in self.limiters)

        await eventually(are)

    async def until_gone(self, key: str, redis: RedisServer) -> None:
        async def gone() -> bool:
            return redis.ask("GET", key) == "$-1"

        await eventually(gone)

    async def until_left(self, number: int, *left: int) -> None:
        async def remain() -> bool:
            limits = self.book.limits
            return [each.remaining for each in await self.limiters[number].peek(limits)] == list(left)

        await eventually(remain)


@contextlib.asynccontextmanager
async def fleet(urls: list[str], book: Book, *, lost_after_s: float = 5.0) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        limiters = []
        for number, url in enumerate(urls):
            link = RedisLink(url, _SECTION, f"boot{number}", heartbeat_s=0.1, lost_after_s=lost_after_s)
            limiter = BucketLimiter(book, lambda: len(urls), link=link, rejoin_s=0.3)
            stack.push_async_callback(link.aclose)
            stack.callback(limiter.close)
            await link.start()
            limiters.append(limiter)
        made = Fleet(limiters, book)
        await made.until_shared()
        yield made


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_over_a_real_outage_the_fleet_stays_within_the_limit(empty_redis: RedisServer, how: str) -> None:
    """Four processes under demand: limit x time + burst over the whole run, and Redis decides again at its end."""
    rate_s, burst = 40, 80
    places = limit("concurrency", 40, scope="key")
    async with fleet([empty_redis.url] * 4, Book(limit("requests", burst, rate=rate_s * 60), places)) as four:
        begun = time.monotonic()
        over = asyncio.Event()
        pressing = [asyncio.create_task(four.press(number, over.is_set)) for number in range(4)]
        await asyncio.sleep(0.4)
        empty_redis.freeze() if how == "frozen" else empty_redis.kill()
        await four.until_all("share")
        apart = four.admitted
        await until(lambda: four.admitted > apart)
        empty_redis.thaw() if how == "frozen" else empty_redis.start()
        await four.until_shared()
        await asyncio.sleep(0.3)
        over.set()
        await asyncio.gather(*pressing)
        # Each of the four may not have heard of what the others took in the same moment.
        assert four.admitted <= burst + rate_s * (time.monotonic() - begun) + 8
        # What a frozen Redis executed late was taken for holders that are gone.
        await four.until_gone(f"{PREFIX}total:{places.key}", empty_redis)


async def test_places_of_a_process_that_dies_come_back(empty_redis: RedisServer) -> None:
    """Its heartbeat is missed; what still runs elsewhere stays counted."""
    book = Book(limit("concurrency", 5))
    async with (
        toxic_proxy(empty_redis.port) as toxic,
        fleet([empty_redis.url, toxic.url], book, lost_after_s=0.6) as two,
    ):
        kept = [await two.limiters[number].admit(CALLER, "auto", 0) for number in (0, 0, 1, 1, 1)]
        with pytest.raises(RateLimited, match="concurrent requests"):
            await two.limiters[0].admit(CALLER, "auto", 0)
        toxic.swallow()
        await two.until_left(0, 3)
        kept += [await two.limiters[0].admit(CALLER, "auto", 0) for _ in range(3)]
        toxic.calm()
        await two.until_shared()
        # It was not dead after all, and what runs there runs: more than the limit for once, and no new ones.
        assert empty_redis.ask("GET", f"{PREFIX}total:{book.limits[0].key}") == "$1"
        with pytest.raises(RateLimited):
            await two.limiters[1].admit(CALLER, "auto", 0)
        for admission in kept:
            admission.settle(0)
        await two.until_left(0, 5)
        await two.until_gone(f"{PREFIX}total:{book.limits[0].key}", empty_redis)


async def test_a_caller_that_hangs_up_while_redis_decides_keeps_nothing(empty_redis: RedisServer) -> None:
    """Its tokens and its place are given back when Redis says that it had them."""
    book = Book(limit("tokens", 1_000), limit("concurrency", 2))
    async with fleet([empty_redis.url], book) as one:
        for turns in range(6):
            asking = asyncio.create_task(one.limiters[0].admit(CALLER, "auto", 100))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await asking).settle(0)
        await one.until_left(0, 1_000, 2)


def test_a_limiter_is_what_the_line_takes() -> None:
    """Its admission has the headers of the contract."""
    admission: Admission = done(alone(limit("requests", 5)).admit(CALLER, "auto", 0))
    assert admission.lines == told_of("requests", 5, 4, 12.0)
