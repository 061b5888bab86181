"""Drift: the same prompts are steady, others are not, and too few say nothing."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live.drift import BINS, FEWEST, DriftReader, by_chance, compared, counted, psi
from cost.ledger.store import LedgerStore
from cost.times import DAY_US
from tests.api.live.ledger import BASE_US, ended

HISTOGRAMS = st.lists(st.integers(0, 10_000), min_size=BINS, max_size=BINS)


@given(HISTOGRAMS, HISTOGRAMS)
def test_psi_is_a_distance(one: list[int], other: list[int]) -> None:
    """Never below 0, 0 for the same histogram, and the same both ways."""
    assert psi(one, one) == pytest.approx(0)
    assert psi(one, other) >= 0
    assert psi(one, other) == pytest.approx(psi(other, one))


def test_psi_by_hand() -> None:
    """Two histograms of which the index is known: 0.8 against 0.2 in one of two bins that hold anything."""
    one, other = [80_000, 20_000, *[0] * 8], [20_000, 80_000, *[0] * 8]
    assert psi(one, other) == pytest.approx(2 * 0.6 * 1.3862943, rel=0.01)


def test_what_chance_gives_is_told() -> None:
    """Samples of one distribution have the expected index on average, so that it is not taken for drift."""
    rng = random.Random(1)
    found = [
        psi(counted(rng.random() for _ in range(600)), counted(rng.random() for _ in range(3_000))) for _ in range(200)
    ]
    assert sum(found) / len(found) == pytest.approx(by_chance(600, 3_000), rel=0.15)


def test_too_few_say_nothing() -> None:
    """Below the least number no index is given, and no verdict."""
    few = compared([FEWEST // BINS] * (BINS - 1) + [0], [1_000] * BINS, BASE_US)
    assert (few.psi, few.psi_training, few.verdict) == (None, None, "unknown")
    assert compared([0] * BINS, [0] * BINS, BASE_US).day == ()


@pytest.mark.parametrize(("complexity", "verdict"), [(lambda rng: rng.random(), "steady"), (lambda _: 0.95, "drifted")])
async def test_the_last_day_is_held_against_the_weeks_before(
    engine: AsyncEngine, complexity: Callable[[random.Random], float], verdict: str
) -> None:
    """Prompts as before are steady; a day of hard prompts alone is drift. Requests that named a model do not count."""
    rng = random.Random(7)
    now_us = BASE_US + 40 * DAY_US
    entries = []
    for number in range(4_000):
        at_us = now_us - 1 - rng.randrange(10 * DAY_US)
        of_day = at_us >= now_us - DAY_US
        value = complexity(rng) if of_day else rng.random()
        entries.append(ended(number, at_us, complexity=value if number % 10 else None))
    await LedgerStore(engine).insert(entries)
    reader = DriftReader(engine, now_us=lambda: now_us)
    found = await reader.read()
    assert found.verdict == verdict
    assert found.day_count >= FEWEST
    assert sum(found.day) == pytest.approx(1)
    assert await reader.read() is found


async def test_who_does_not_wait_long_finds_it_later(engine: AsyncEngine) -> None:
    """A look that takes longer goes on behind and serves who asks again; it is ended with the process."""
    reader = DriftReader(engine, now_us=lambda: BASE_US)
    assert await reader.within(0) is None
    found = await reader.within(30)
    assert found is not None
    assert found.verdict == "unknown"
    assert reader.known is found
    again = DriftReader(engine, now_us=lambda: BASE_US)
    assert await again.within(0) is None
    await again.aclose()
    assert again.known is None
