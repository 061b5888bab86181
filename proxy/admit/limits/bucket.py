"""Token bucket arithmetic: the same IEEE operations, in the same order, as `proxy/shared/redis/scripts/admit.lua`.

A bucket is a level and the time at which it had that level, in microseconds. Everything is a float, as all numbers are
there. A bucket without a state is full. A level below zero is a debt, which refilling pays.
"""

from typing import Final

_MINUTE_US: Final = 60_000_000.0


def refilled(level: float, at_us: float, now_us: float, rate: float, burst: float) -> float:
    """Return the level at `now_us`: refilled by `rate` per minute up to `burst`. A clock that went back refills
    nothing. After a reload the level stays, clipped to a smaller new burst.
    """
    if now_us > at_us:
        level = level + (now_us - at_us) * rate / _MINUTE_US
    return min(level, burst)


def corrected(level: float, correction: float, burst: float) -> float:
    """Return the level after a refund, or after a charge where `correction` is negative. A refund never exceeds the
    burst.
    """
    return min(level + correction, burst)


def wait_us(level: float, amount: float, rate: float) -> float:
    """Return the microseconds until `amount` fits."""
    return 0.0 if level >= amount else (amount - level) * _MINUTE_US / rate


def share(rate: float, burst: float, live: int) -> tuple[float, float]:
    """Return one process's (rate, burst) of a limit shared by `live` processes. The burst is at least 1, or nothing
    would be admitted.
    """
    return (rate, burst) if live <= 1 else (rate / live, max(1.0, burst / live))


def places(most: int, live: int) -> int:
    """Return one process's share of a concurrency limit, rounded up so that it is at least 1."""
    return -(-most // max(1, live))
