"""The arithmetic of a token bucket: the same IEEE operations, in the same order, as in `proxy/redis/scripts/admit.lua`.

A bucket is a level and the time at which it had that level, in microseconds. Everything is a float, as all numbers are
there. A bucket without a state is full. A level below zero is a debt, which refilling pays.
"""

from typing import Final

_MINUTE_US: Final = 60_000_000.0


def refilled(level: float, at_us: float, now_us: float, rate: float, burst: float) -> float:
    """The level now. It fills by `rate` a minute up to `burst`; a clock that went back fills nothing.

    What was changed by a reload needs nothing more: the level stays, and is clipped where the new burst is smaller.
    """
    if now_us > at_us:
        level = level + (now_us - at_us) * rate / _MINUTE_US
    return min(level, burst)


def corrected(level: float, correction: float, burst: float) -> float:
    """After a refund, or after a debt where `correction` is negative. A refund never fills above the burst."""
    return min(level + correction, burst)


def wait_us(level: float, amount: float, rate: float) -> float:
    """How long until `amount` fits."""
    return 0.0 if level >= amount else (amount - level) * _MINUTE_US / rate


def share(rate: float, burst: float, live: int) -> tuple[float, float]:
    """What one of so many processes may use on its own. A burst below one would let nothing in at all."""
    return (rate, burst) if live <= 1 else (rate / live, max(1.0, burst / live))


def places(most: int, live: int) -> int:
    """One process's share of a concurrency limit: rounded up, so that it is never none."""
    return -(-most // max(1, live))
