"""The prices in effect: entered ones, dates that pass, and a database that does not answer."""

import asyncio
import logging
import time

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.price_book.book import DatedPrice, PriceBook, price_book
from cost.price_book.price_updates import PriceWatch
from cost.price_book.store import PriceStore
from cost.prices import Price, price_from_usd
from gateway.database import make_engine
from tests.cost.entries import until


class Clock:
    """Microseconds, as the test says."""

    def __init__(self) -> None:
        self.now_us = 1_000

    def __call__(self) -> int:
        return self.now_us


def price(input_usd: int = 1, version: str = "v1") -> Price:
    return price_from_usd(version=version, input_usd=input_usd, output_usd=2)


def book(*prices: Price, effective_us: int = 0) -> PriceBook:
    return price_book(
        DatedPrice(target_id="m", price=each, source="config", effective_us=effective_us * place)
        for place, each in enumerate(prices)
    )


class Watched:
    """A watch, its clock, and what it told."""

    def __init__(self, store: PriceStore, configured: PriceBook) -> None:
        self.clock = Clock()
        self.seen: list[str | None] = []
        self.watch = PriceWatch(store, configured, self._changed, self.clock)

    def _changed(self) -> None:
        self.seen.append(self.version)

    @property
    def version(self) -> str | None:
        found = self.watch.book.at("m", self.clock())
        return None if found is None else found.version


@pytest.fixture
def store(engine: AsyncEngine) -> PriceStore:
    return PriceStore(engine)


async def test_entered_prices_come_into_effect_and_go(store: PriceStore) -> None:
    """Within one look, and nothing is told when nothing changed."""
    watched = Watched(store, book(price()))
    await watched.watch.refresh()
    assert (watched.version, watched.seen) == ("v1", [])
    await store.add_override("m", price(3, "entered"), 0)
    await store.add_override("m", price(4, "later"), 5_000)
    await watched.watch.refresh()
    await watched.watch.refresh()
    assert watched.seen == ["entered"]
    watched.clock.now_us = 5_000
    await watched.watch.refresh()
    await store.withdraw("m", "later")
    await store.withdraw("m", "entered")
    await watched.watch.refresh()
    assert watched.seen == ["entered", "later", "v1"]


async def test_a_configured_date_passes(store: PriceStore) -> None:
    """A price that begins today holds without a reload."""
    watched = Watched(store, book(price(1, "old"), price(2, "new"), effective_us=9_000))
    await watched.watch.refresh()
    watched.clock.now_us = 8_999
    await watched.watch.refresh()
    assert (watched.version, watched.seen) == ("old", [])
    watched.clock.now_us = 9_000
    await watched.watch.refresh()
    assert (watched.version, watched.seen) == ("new", ["new"])


async def test_versions_are_remembered_and_renamed(store: PriceStore) -> None:
    """What rows say they were booked at can be looked up, whatever the configuration was changed to."""
    first = Watched(store, book(price(1)))
    await first.watch.refresh()
    second = Watched(store, book(price(2)))
    await second.watch.refresh()
    renamed = f"v1~{price(2).digest()}"
    assert (first.version, second.version, second.seen) == ("v1", renamed, [renamed])
    assert await store.figures("m", renamed) == price(2).named(renamed)


async def test_a_changed_configuration_is_adopted_at_once(store: PriceStore) -> None:
    """A version whose figures were changed has its other name before the database was asked."""
    watched = Watched(store, book(price(1)))
    await watched.watch.refresh()
    changed = book(price(2))
    assert watched.watch.with_configured(changed).at("m", 0) == price(2).named(f"v1~{price(2).digest()}")
    assert watched.version == "v1"
    watched.watch.adopt(changed)
    assert watched.version == f"v1~{price(2).digest()}"
    await watched.watch.refresh()
    assert await store.figures("m", f"v1~{price(2).digest()}") is not None
    # Whoever adopted it has swapped the rules himself.
    assert watched.seen == []
    watched.watch.adopt(book(price(1)))
    assert watched.version == "v1"


async def test_it_follows_until_it_is_stopped(store: PriceStore) -> None:
    """It looks every few seconds, and at once after a change of the configuration."""
    watched = Watched(store, book(price(1)))
    await store.add_override("m", price(3, "entered"), 0)
    following = asyncio.create_task(watched.watch.follow(3_600.0))
    watched.watch.adopt(book(price(1)))
    await until(lambda: watched.seen == ["entered"])
    following.cancel()
    following = asyncio.create_task(watched.watch.follow(0.01))
    await store.withdraw("m", "entered")
    await until(lambda: watched.seen == ["entered", "v1"])
    following.cancel()


async def test_a_price_that_begins_is_not_waited_for(store: PriceStore) -> None:
    """It holds when it begins, however seldom the database is asked."""
    start_us = time.time_ns() // 1_000
    watched = Watched(store, book(price(1, "old"), price(2, "new"), effective_us=start_us + 60_000))
    watched.watch = PriceWatch(store, watched.watch.book, lambda: watched.seen.append("changed"))
    await watched.watch.refresh()
    following = asyncio.create_task(watched.watch.follow(3_600.0))
    await until(lambda: watched.seen == ["changed"])
    following.cancel()


async def test_without_a_database_prices_stay_as_they_are(
    empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; dates still pass, and what was entered still counts."""
    caplog.set_level(logging.WARNING, "weighbridge.prices")
    engine = make_engine(empty_database_url)
    watched = Watched(PriceStore(engine), book(price(1, "old"), price(2, "new"), effective_us=9_000))
    await watched.watch.refresh()
    await watched.watch.refresh()
    assert (watched.version, watched.seen) == ("old", [])
    watched.clock.now_us = 9_000
    await watched.watch.refresh()
    assert watched.seen == ["new"]
    told = [record.message for record in caplog.records if "cannot be looked up" in record.message]
    assert len(told) == 1
    assert "://" not in told[0]
    await engine.dispose()


async def test_what_could_not_be_taken_over_is_tried_again(store: PriceStore) -> None:
    """A failure of the swap is not taken for a success."""
    failures = [RuntimeError("not now")]
    seen = []

    def changed() -> None:
        if failures:
            raise failures.pop()
        seen.append("changed")

    watch = PriceWatch(store, book(price()), changed, Clock())
    await store.add_override("m", price(3, "entered"), 0)
    with pytest.raises(RuntimeError, match="not now"):
        await watch.refresh()
    await watch.refresh()
    assert seen == ["changed"]
