"""A day's bill, and how it is shared to the nano-dollar."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cost.fleet.bill import allocate, bill_of, posted_bill, usd_per_million, weights_ps
from cost.meters import METER_NAMES, TOKEN_METERS
from cost.times import DAY_US, HOUR_US
from tests.cost.by_meter import by_meter
from tests.cost.fleet.pools import pool

NOTHING = by_meter()
counts = st.integers(0, 3_000_000_000)
groups = st.lists(st.tuples(*[counts] * len(TOKEN_METERS), st.integers(0, 100)), max_size=8)
pools = st.builds(
    lambda usd, overhead, gpus, fresh, cached, output: pool(
        usd_per_gpu_hour=Decimal(usd) / 1_000_000_000,
        overhead=Decimal(overhead) / 1_000_000,
        gpus_per_replica=gpus,
        seconds_per_million={
            "input": Decimal(fresh) / 1_000_000,
            "cached_input": Decimal(cached) / 1_000_000,
            "output": Decimal(output) / 1_000_000,
        },
    ),
    st.integers(0, 20_000_000_000),
    st.integers(1_000_000, 3_000_000),
    st.integers(1, 16),
    *[st.integers(0, 1_000_000_000)] * 3,
)


def test_a_day_of_one_replica_costs_its_gpu_hours() -> None:
    """24 h x 2 GPUs x 2.95 $/h = 141.60 $; with 30 % overhead 184.08 $."""
    assert bill_of(pool(), DAY_US).nanousd == 141_600_000_000
    assert bill_of(pool(overhead=Decimal("1.3")), DAY_US).nanousd == 184_080_000_000


def test_shares_computed_by_hand() -> None:
    """One hour up is 5.90 $; 3 M prompt, 1 M cached and 2 M output tokens take 515.436 s of it."""
    shared = allocate(
        bill_of(pool(), HOUR_US),
        [
            by_meter(input=3_000_000, cached_input=1_000_000, request=7),
            by_meter(output=1_500_000, reasoning=500_000, request=1),
        ],
        weights_ps(pool()),
    )
    # 5.90 $ / 3600 s = 1,638,888.89 nano-dollars a second; 113.436 s, 2 s; 300 s, 100 s. Exactly 185,909,000;
    # 3,277,777.78; 491,666,666.67; 163,888,888.89: together 844,742,333.33, so the last but one is rounded down.
    assert shared.shares == (
        by_meter(input=185_909_000, cached_input=3_277_778),
        by_meter(output=491_666_666, reasoning=163_888_889),
    )
    assert shared.idle_nanousd == 5_900_000_000 - 844_742_333
    assert (shared.busy_us, shared.overfull) == (515_436_000, False)


@given(pools, groups, st.integers(0, 40 * DAY_US))
def test_a_days_rows_add_up_to_its_bill(a_pool: Any, used: Any, up_us: int) -> None:
    """Groups by meter and the idle row are the bill to the nano-dollar, and nobody's row is negative."""
    bill = bill_of(a_pool, up_us)
    shared = allocate(bill, used, weights_ps(a_pool))
    cells = [amount for share in shared.shares for amount in share]
    assert sum(cells) + shared.idle_nanousd == bill.nanousd
    assert len(shared.shares) == len(used)
    assert min([*cells, shared.idle_nanousd]) >= 0


@given(pools, groups, st.integers(0, 40 * DAY_US))
def test_nobody_pays_a_nano_dollar_more_than_its_share(a_pool: Any, used: Any, up_us: int) -> None:
    """Each cell is the exact share, rounded up or down."""
    bill, weights = bill_of(a_pool, up_us), weights_ps(a_pool)
    shared = allocate(bill, used, weights)
    busy = sum(amount * weight for group in used for amount, weight in zip(group, weights, strict=True))
    for group, share in zip(used, shared.shares, strict=True):
        for amount, weight, paid in zip(group, weights, share, strict=True):
            whole = max(busy, up_us * 1_000_000)
            exact = bill.nanousd * amount * weight / whole if whole else 0
            assert abs(paid - exact) <= 1.001 + exact * 1e-12


@given(pools, groups, st.integers(0, 40 * DAY_US), st.integers(1, 40 * DAY_US))
def test_an_idle_replica_raises_the_idle_row_alone(a_pool: Any, used: Any, up_us: int, more_us: int) -> None:
    """While there was time enough, another replica changes what nobody used and nothing else."""
    weights = weights_ps(a_pool)
    before = allocate(bill_of(a_pool, up_us), used, weights)
    after = allocate(bill_of(a_pool, up_us + more_us), used, weights)
    assert bill_of(a_pool, up_us + more_us).nanousd >= bill_of(a_pool, up_us).nanousd
    if not before.overfull:
        assert after.shares == before.shares
        assert after.idle_nanousd >= before.idle_nanousd


def test_tokens_that_took_longer_than_there_was_share_all_of_it() -> None:
    """Then the weights are off: nothing is idle, the bill is still the bill, and the day is marked."""
    shared = allocate(
        bill_of(pool(), HOUR_US),
        [by_meter(output=18_000_000, request=1), by_meter(output=36_000_000, request=1)],
        weights_ps(pool()),
    )
    assert [share[METER_NAMES.index("output")] for share in shared.shares] == [1_966_666_667, 3_933_333_333]
    assert (shared.idle_nanousd, shared.overfull, shared.busy_us) == (0, True, 3 * HOUR_US)


def test_a_day_that_nobody_used_is_idle() -> None:
    """The whole bill has no team."""
    shared = allocate(bill_of(pool(), DAY_US), [NOTHING], weights_ps(pool()))
    assert (shared.shares, shared.idle_nanousd) == ((NOTHING,), 141_600_000_000)


def test_a_pool_that_was_never_up_costs_nothing() -> None:
    """Also when somebody claims that it worked."""
    shared = allocate(
        bill_of(pool(), 0),
        [by_meter(input=5, cached_input=5, cache_write=5, cache_write_1h=5, output=5, reasoning=5, request=1)],
        weights_ps(pool()),
    )
    assert (shared.shares, shared.idle_nanousd, shared.overfull) == ((NOTHING,), 0, True)


def test_a_posted_bill_stays_when_the_rate_changes() -> None:
    """And is shared at what it was then."""
    dearer = pool(usd_per_gpu_hour=4)
    kept = posted_bill(dearer, DAY_US, 141_600_000_000)
    shared = allocate(kept, [by_meter(output=216_000_000, request=1)], weights_ps(dearer))
    assert (kept.nanousd, shared.shares[0][METER_NAMES.index("output")]) == (141_600_000_000, 70_800_000_000)


def test_what_to_plan_with() -> None:
    """5.90 $ an hour for 200 s of output a million are 0.327778 $; at half the utilisation twice that."""
    assert usd_per_million(pool(), Fraction(1)) == {
        "input": Decimal("0.061970"),
        "cached_input": Decimal("0.003278"),
        "output": Decimal("0.327778"),
    }
    assert usd_per_million(pool(), Fraction(1, 2))["output"] == Decimal("0.655556")
