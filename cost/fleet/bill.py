"""Bill of a pool's UTC day and its allocation. Pure; money is whole nano-dollars and adds up exactly.

The bill is for the time that replicas were up. Tokens pay for the time that they took, by measured weights, and nobody
pays for the rest: that is the idle row. Busy and up time are both counted in picoseconds of one replica, so that
nothing is rounded before the end.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

import msgspec

from cost.fleet.pool_config import PoolSection
from cost.meters import METER_NAMES, Meters, with_fallbacks
from cost.prices import nanousd
from cost.times import HOUR_US

_PS_PER_US: Final = 1_000_000


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a pool's replicas for the time that they were up."""

    up_us: int
    """Microseconds summed over replicas: two that were up for an hour make two hours."""
    nanousd: int
    nanousd_per_up_us: Fraction


def rate_of(pool: PoolSection) -> Fraction:
    """Return the exact cost of one replica per microsecond in nano-dollars."""
    return nanousd(pool.usd_per_gpu_hour) * pool.gpus_per_replica * Fraction(pool.overhead) / HOUR_US


def bill_of(pool: PoolSection, up_us: int) -> Bill:
    """Return the bill for this time up, rounded half up to a nano-dollar once."""
    rate = rate_of(pool)
    return Bill(up_us=up_us, nanousd=_half_up(rate * up_us), nanousd_per_up_us=rate)


def posted_bill(pool: PoolSection, up_us: int, nanousd_posted: int) -> Bill:
    """Return a bill as posted for these hours, at the rate that follows: a past day keeps it when rates change."""
    fresh = bill_of(pool, up_us)
    if fresh.nanousd == nanousd_posted or up_us == 0:
        return fresh
    return Bill(up_us=up_us, nanousd=nanousd_posted, nanousd_per_up_us=Fraction(nanousd_posted, up_us))


def weights_ps(pool: PoolSection) -> Meters:
    """Return picoseconds of one replica per unit of each meter. Cache writes are computed, so they weigh like input."""
    seconds = pool.seconds_per_million
    fresh, cached, output = (
        # Seconds for a million tokens are microseconds for one; the sixth decimal is a picosecond.
        int(each * _PS_PER_US)
        for each in (seconds.input, seconds.cached_input, seconds.output)
    )
    return with_fallbacks({"input": fresh, "cached_input": cached, "output": output, "request": 0})


def usd_per_million(pool: PoolSection, utilisation: Fraction) -> dict[str, Decimal]:
    """Return US dollars per million tokens of each kind at this utilisation, to six places; for planning."""
    weights = dict(zip(METER_NAMES, weights_ps(pool), strict=True))
    # A picosecond of a token is a microsecond of a million.
    rate = rate_of(pool) / utilisation
    return {
        name: Decimal(_half_up(rate * weights[name] / 1_000)) / 1_000_000
        for name in ("input", "cached_input", "output")
    }


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocated bill: `shares` has one row per group, in order, and adds up to the bill with `idle_nanousd`."""

    shares: tuple[Meters, ...]
    idle_nanousd: int
    busy_us: int
    """Replica time that the tokens took by the weights, to the nearest microsecond."""
    overfull: bool
    """True if by the weights the tokens took longer than replicas were up: the weights, or the hours, are wrong."""


def allocate(bill: Bill, used: Sequence[Meters], weights: Meters) -> Allocation:
    """Charge each group for its replica time by largest remainder; the rest is idle.

    When the tokens took more time than there was, they pay the whole bill in proportion. The groups' part does not
    depend on how long replicas were up beside it, so another idle replica changes the idle row and no other, to the
    nano-dollar.
    """
    cells = [amount * weight for group in used for amount, weight in zip(group, weights, strict=True)]
    busy_ps = sum(cells)
    up_ps = bill.up_us * _PS_PER_US
    overfull = busy_ps > up_ps
    if overfull:
        price, total = Fraction(bill.nanousd, busy_ps), bill.nanousd
    else:
        price = bill.nanousd_per_up_us / _PS_PER_US
        total = _half_up(price * busy_ps)
    shared = _largest_remainder(total, cells, price)
    width = len(weights)
    shares = tuple(tuple(shared[at : at + width]) for at in range(0, len(shared), width))
    return Allocation(
        shares=shares,
        idle_nanousd=bill.nanousd - total,
        busy_us=_half_up(Fraction(busy_ps, _PS_PER_US)),
        overfull=overfull,
    )


def _largest_remainder(total: int, cells: Sequence[int], price: Fraction) -> list[int]:
    """Round each cell's amount (cell x price) down, and give what is left of `total` to the largest remainders."""
    quotas = [divmod(cell * price.numerator, price.denominator) for cell in cells]
    shared = [whole for whole, _ in quotas]
    left = total - sum(shared)
    # Of equal remainders the earlier one wins: the same books are always shared the same way.
    order = sorted((at for at, cell in enumerate(cells) if cell), key=lambda at: (-quotas[at][1], at))
    for at in order[:left]:
        shared[at] += 1
    return shared


def _half_up(amount: Fraction) -> int:
    return (2 * amount.numerator + amount.denominator) // (2 * amount.denominator)
