"""Lost hosts: what they left open is closed once, and taken back exactly when they come with the true end."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.drain import Drain
from cost.ledger.entries import reversal_of, void_of
from cost.ledger.journal import Journal
from cost.ledger.ledger import Ledger
from cost.ledger.orphan_reaper import OrphanReaper, expiry_of
from cost.ledger.segments import encode_line, segment_path
from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from gateway.database import make_engine
from tests.cost.entries import reserve, settle

NOON_S = reserve().at_us / 1_000_000
DONE = settle(input_nanousd=600_000, output_nanousd=400_000, served=True)


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = NOON_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _reaper(engine: AsyncEngine, clock: Clock, host: str = "a") -> OrphanReaper:
    return OrphanReaper(engine, LedgerStore(engine), host=host, clock=clock)


async def _sums(engine: AsyncEngine) -> list[int]:
    names = ("requests", "attempts", "served", "output_tokens", "cost_nanousd", "request_nanousd", "estimated_attempts")
    async with engine.connect() as connection:
        row = await connection.execute(
            text(f"SELECT {', '.join(f'sum({name})' for name in names)} FROM rollup_day")  # noqa: S608
        )
        return [int(figure) for figure in row.one()]


async def _agree(engine: AsyncEngine) -> bool:
    at_us = reserve().at_us
    return (await check(engine, at_us, at_us + 1, now_us=at_us)).told == ()


async def _lose(engine: AsyncEngine, clock: Clock) -> OrphanReaper:
    """A host reserves, is not seen again, and another one gives it up."""
    lost = _reaper(engine, clock)
    await lost.show(["boot1"])
    await LedgerStore(engine).insert([reserve()])
    clock.now += 3601
    other = _reaper(engine, clock, "b")
    await other.expire([])
    assert other.expired == 1
    return lost


async def test_what_a_lost_host_left_open_is_closed(engine: AsyncEngine, clock: Clock) -> None:
    """At the reserve's cost, as an estimate, flagged, once; by whichever process looks."""
    await _lose(engine, clock)
    held, expired = sorted(await LedgerStore(engine).entries("req_1"), key=lambda entry: entry.entry, reverse=True)
    assert (held.entry, expired.entry, expired.cost_nanousd) == ("reserve", "expire", 5_000_000)
    assert (expired.usage_source, expired.flags, expired.request_nanousd) == ("estimated", ("lost_host",), 5_000_000)
    again = _reaper(engine, clock, "c")
    await again.expire([])
    assert again.expired == 0
    assert await _sums(engine) == [1, 1, 0, 0, 5_000_000, 5_000_000, 1]
    assert await _agree(engine)


async def test_the_seen_and_our_own_are_left_alone(engine: AsyncEngine, clock: Clock) -> None:
    """Who was seen within the time lives, and what has its journal here is recovered from it."""
    await LedgerStore(engine).insert([reserve("seen", boot_id="boot2"), reserve("ours", boot_id="boot3")])
    for boot_id in ("boot2", "boot3"):
        await _reaper(engine, clock).show([boot_id])
    clock.now += 3601
    await _reaper(engine, clock).show(["boot2"])
    other = _reaper(engine, clock)
    await other.expire(["boot3"])
    assert other.expired == 0
    await other.forget("boot3")
    await other.expire([])
    assert other.expired == 0


@pytest.mark.parametrize("end", [DONE, void_of(reserve())], ids=["settle", "void"])
async def test_a_host_that_comes_back_is_not_counted_twice(engine: AsyncEngine, clock: Clock, end: object) -> None:
    """The true end counts, the expiry is taken back to the nano-dollar and the request; also when it is told again."""
    lost = await _lose(engine, clock)
    assert lost.may_be_given_up("boot1")
    store = LedgerStore(engine)
    closing = DONE if end is DONE else void_of(reserve())
    assert await store.insert([closing], careful=lost.may_be_given_up("boot1")) == 2
    assert await store.insert([reserve(), closing], careful=True) == 0
    expected = [1, 1, 1, 200, 1_000_000, 0, 0] if end is DONE else [1, 0, 0, 0, 0, 0, 0]
    assert await _sums(engine) == expected
    adjusted = next(entry for entry in await store.entries("req_1") if entry.entry == "adjust")
    assert adjusted == reversal_of(expiry_of(reserve()))
    assert await _agree(engine)


async def test_what_was_closed_does_not_expire(engine: AsyncEngine, clock: Clock) -> None:
    """An expiry that comes after the true end is not written."""
    await LedgerStore(engine).insert([reserve(), DONE])
    assert await LedgerStore(engine).insert([expiry_of(reserve())], careful=True) == 0
    assert clock.now == NOON_S


async def test_the_end_and_the_expiry_at_once(database_url: str, engine: AsyncEngine) -> None:
    """Whichever of two processes is first, one of both counts, for each of many attempts."""
    names = [f"req_{number:02}" for number in range(40)]
    await LedgerStore(engine).insert([reserve(name) for name in names])
    engines = [make_engine(database_url) for _ in range(2)]
    first, second = (LedgerStore(each) for each in engines)

    async def settled() -> None:
        for name in names:
            done = settle(name, input_nanousd=600_000, output_nanousd=400_000)
            await first.insert([done], careful=True)

    async def expired() -> None:
        for name in reversed(names):
            await second.insert([expiry_of(reserve(name))], careful=True)

    await asyncio.gather(settled(), expired())
    assert (await _sums(engine))[:2] == [40, 40]
    assert (await _sums(engine))[4] == 40 * 1_000_000
    assert await _agree(engine)
    for each in engines:
        await each.dispose()


async def test_a_process_knows_that_it_may_be_given_up(engine: AsyncEngine, clock: Clock) -> None:
    """Before it is shown, then after half the time without being seen, and ever after, also when it is shown again."""
    reaper = _reaper(engine, clock)
    assert reaper.may_be_given_up("boot1")
    await reaper.show(["boot1"])
    clock.now += 1800
    assert not reaper.may_be_given_up("boot1")
    await reaper.show(["boot1"])
    clock.now += 1801
    await reaper.show(["boot1"])
    assert reaper.may_be_given_up("boot1")


async def test_hosts_whose_clocks_differ(engine: AsyncEngine, clock: Clock) -> None:
    """Whether a host is lost does not depend on what its clock says, or on that of who looks."""
    store = LedgerStore(engine)
    for boot_id in ("boot1", "boot2"):
        await OrphanReaper(engine, store, host=boot_id).show([boot_id])
    await store.insert([reserve(), reserve("req_2", boot_id="boot2")])
    other = OrphanReaper(engine, store, host="b")
    await other.expire([])
    assert other.expired == 0
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE boot SET seen_us = seen_us - 3601000000 WHERE boot_id = 'boot2'"))
    await other.expire([])
    assert other.expired == 1
    assert clock.now == NOON_S


async def test_a_process_that_was_taken_off_the_list_knows(engine: AsyncEngine, clock: Clock) -> None:
    """Whatever its own clock says."""
    reaper = _reaper(engine, clock)
    await reaper.show(["boot1"])
    await _reaper(engine, clock).forget("boot1")
    await reaper.show(["boot1"])
    assert reaper.may_be_given_up("boot1")


async def test_who_shows_a_process_next_knows_too(engine: AsyncEngine, clock: Clock) -> None:
    """Of a process that lives on while another shows it: by when it was seen last, and whether it is still known."""
    await _reaper(engine, clock).show(["boot1", "boot2"])
    clock.now += 1700
    await _reaper(engine, clock).show(["boot2"])
    clock.now += 200
    successor = _reaper(engine, clock)
    await successor.show(["boot1", "boot2", "boot3", "boot4"], drained=["boot1", "boot2", "boot4"])
    given_up = {each for each in ("boot1", "boot2", "boot3", "boot4") if successor.may_be_given_up(each)}
    assert given_up == {"boot1", "boot4"}
    await successor.forget("boot3")
    assert successor.may_be_given_up("boot3")


async def test_a_process_is_shown_and_comes_back(engine: AsyncEngine, clock: Clock, tmp_path: Path) -> None:
    """From its journal, after it was given up: what is drained late, and what is recovered later, counts once."""
    store = LedgerStore(engine)
    lost = _reaper(engine, clock)
    drain = Drain(tmp_path / "a", store, clock, boot_id="control", interval_s=3600.0, presence=lost)
    await drain.start()
    ledger = Ledger(Journal(tmp_path / "a"))
    await ledger.start()
    await ledger.reserve(reserve(boot_id=ledger.boot_id))
    assert await drain.drain_now()
    async with engine.connect() as connection:
        shown = (await connection.execute(text("SELECT boot_id FROM boot"))).scalars().all()
    assert set(shown) == {"control", ledger.boot_id}
    clock.now += 4000
    other = _reaper(engine, clock, "b")
    await other.expire([])
    assert other.expired == 1
    ledger.settle(settle(boot_id=ledger.boot_id, input_nanousd=600_000, output_nanousd=400_000))
    assert await drain.drain_now()
    assert (await _sums(engine))[4] == 1_000_000
    await ledger.aclose()
    await drain.aclose()
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM boot"))).scalar_one() == 0
    assert await _agree(engine)


async def test_a_lost_hosts_journal_is_recovered_late(engine: AsyncEngine, clock: Clock, tmp_path: Path) -> None:
    """A machine that was gone for long and restarts brings its journal; the end that stands in it counts, once."""
    await _lose(engine, clock)
    (tmp_path / "boot-boot1.lock").touch()
    segment_path(tmp_path, "boot1", 0).write_bytes(encode_line(reserve()) + encode_line(DONE))
    drain = Drain(tmp_path, LedgerStore(engine), clock, interval_s=3600.0)
    await drain.start()
    assert await _sums(engine) == [1, 1, 1, 200, 1_000_000, 0, 0]
    assert drain.counts.orphans == 0
    assert await _agree(engine)
    await drain.aclose()
