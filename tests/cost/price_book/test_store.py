"""Prices in the database, on SQLite and on PostgreSQL."""

import asyncio

import msgspec
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.errors import PriceError, PriceRefused, UnknownPrice
from cost.price_book.book import DatedPrice
from cost.price_book.store import PriceStore
from cost.prices import LongPrompt, Price, price_from_usd
from cost.tables import PriceVersion


@pytest.fixture
def store(engine: AsyncEngine) -> PriceStore:
    return PriceStore(engine)


def price(input_usd: str = "1", version: str = "v1") -> Price:
    return price_from_usd(version=version, input_usd=input_usd, output_usd=2)


async def test_what_rows_were_booked_at_is_known_for_ever(store: PriceStore) -> None:
    """Every figure comes back, tiers and batches too; another target's version is another one."""
    full = msgspec.structs.replace(
        price(), batch=price("0.5"), long_prompts=(LongPrompt(above_tokens=5, price=price("3")),), reasoning_nanousd=7
    )
    assert await store.remember("m", full, "config", 5) == full
    assert await store.figures("m", "v1") == full
    assert await store.figures("m", "v2") is None
    assert await store.figures("other", "v1") is None


async def test_a_version_stands_for_the_same_figures_for_ever(store: PriceStore) -> None:
    """The same name with other figures gets their digest; remembering again changes nothing."""
    assert (await store.remember("m", price("1"), "config")).version == "v1"
    other = await store.remember("m", price("2"), "config")
    assert other.version == f"v1~{price('2').digest()}"
    assert (await store.remember("m", price("2"), "config")).version == other.version
    assert (await store.remember("m", price("1"), "litellm", 9)).version == "v1"
    assert await store.figures("m", "v1") == price("1")
    assert await store.figures("m", other.version) == other == price("2").named(other.version)


async def test_many_are_remembered_at_once(store: PriceStore) -> None:
    """In their order, each with its own name, however many."""
    await store.remember("m7", price("9"), "config")
    given = [DatedPrice(target_id=f"m{n}", price=price(str(n)), source="config") for n in range(450)]
    kept = await store.remember_all([*given, given[3]])
    assert [each.target_id for each in kept] == [each.target_id for each in (*given, given[3])]
    assert {each.price.version for each in kept if each.target_id != "m7"} == {"v1"}
    assert kept[7].price.version == f"v1~{price('7').digest()}"
    assert await store.remember_all([]) == []


async def test_processes_that_start_together_agree(store: PriceStore) -> None:
    """Of two configurations with one name for two prices, both are kept and neither fails."""
    kept = await asyncio.gather(*(store.remember("m", price(str(n % 2 + 1)), "config") for n in range(8)))
    names = {each.input_nanousd: {other.version for other in kept if other.same_figures(each)} for each in kept}
    assert sorted(len(each) for each in names.values()) == [1, 1]
    assert {name for found in names.values() for name in found} > {"v1"}


async def test_overrides_are_entered_and_taken_back(store: PriceStore) -> None:
    """What was taken back is no longer in effect, and its figures stay known."""
    first = await store.add_override("m", price(version="a"), 5, note="why")
    second = await store.add_override("n", price(version="b"), 7)
    assert await store.overrides() == [first, second]
    assert (first.source, first.effective_us, first.note) == ("override", 5, "why")
    await store.withdraw("m", "a")
    await store.withdraw("m", "a")
    assert await store.overrides() == [second]
    (known,) = await store.known("m")
    assert (known.price, known.source, known.withdrawn_us is None) == (first.price, "override", False)
    assert await store.figures("m", "a") == price(version="a")


async def test_an_override_entered_twice_is_one(store: PriceStore) -> None:
    """A repeated call is harmless; another price of the name is another one, and so is one that was taken back."""
    first = await store.add_override("m", price("1"), 5)
    assert await store.add_override("m", price("1"), 5) == first
    other = await store.add_override("m", price("2"), 5)
    assert (first.price.version, other.price.version) == ("v1", f"v1~{price('2').digest()}")
    await store.withdraw("m", "v1")
    again = await store.add_override("m", price("1"), 5)
    assert again.price.version == f"v1~{price('1').digest()}"
    await store.withdraw("m", again.price.version)
    assert (await store.add_override("m", price("1"), 5)).price.version == f"{again.price.version}-2"


async def test_an_override_may_have_the_name_of_a_configured_price(store: PriceStore) -> None:
    """It is in effect under a name of its own, also when its figures are the same."""
    await store.remember("m", price(), "config")
    entered = await store.add_override("m", price(), 5)
    assert entered.price.version == f"v1~{price().digest()}"
    assert await store.overrides() == [entered]


async def test_only_overrides_are_taken_back(store: PriceStore) -> None:
    """A configured price is changed where it is configured."""
    await store.remember("m", price(), "config")
    with pytest.raises(PriceRefused, match="comes from config"):
        await store.withdraw("m", "v1")
    with pytest.raises(UnknownPrice, match="has no price 'v2'"):
        await store.withdraw("m", "v2")
    with pytest.raises(UnknownPrice):
        await store.withdraw("x' OR '1'='1", "v1")
    for target_id, version in (("m\0", "v1"), ("m", "v1\0")):
        with pytest.raises(UnknownPrice):
            await store.withdraw(target_id, version)


async def test_corrections_are_never_in_effect(store: PriceStore) -> None:
    """Their prices are remembered like any other."""
    await store.remember("m", price(), "correction")
    assert await store.overrides() == []
    assert await store.figures("m", "v1") == price()


async def test_a_price_of_a_newer_release_is_not_guessed_at(store: PriceStore, engine: AsyncEngine) -> None:
    """Figures that are not understood are an error, not a price without them."""
    await store.add_override("m", price(), 0)
    async with engine.begin() as connection:
        await connection.execute(update(PriceVersion).values(figures='{"version":"v1","input_nanousd":1,"new":2}'))
    with pytest.raises(PriceError, match="newer release"):
        await store.overrides()
    with pytest.raises(PriceError, match="newer release"):
        await store.figures("m", "v1")


async def test_long_names_and_notes(store: PriceStore) -> None:
    """A name is cut so that an ending still fits; a note has a limit."""
    long = price(version="x" * 200)
    kept = [await store.remember("m", msgspec.structs.replace(long, input_nanousd=n), "config") for n in range(3)]
    assert len({each.version for each in kept}) == 3
    assert max(len(each.version) for each in kept) <= 200
    with pytest.raises(PriceRefused, match="at most 1000"):
        await store.add_override("m", price(), 0, note="x" * 1_001)
