"""An open loop of callers, their times and sizes: it does not wait for answers, as people do not wait for each other."""

import random
from collections.abc import Sequence
from typing import Final

import msgspec

_MOST: Final = 200_000
"""Most arrivals of one plan."""


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """One request."""

    at_s: float
    """Seconds after the load's beginning."""
    caller: int
    tokens: int
    """Tokens of the answer."""


class Stream(msgspec.Struct, frozen=True):
    """Requests of one caller."""

    caller: int
    per_s: float


def poisson(per_s: float, seconds: float, rng: random.Random) -> list[float]:
    """Return the moments of a Poisson process: independent of each other, so `per_s` on the average."""
    moments: list[float] = []
    at_s = 0.0
    while per_s > 0 and (at_s := at_s + rng.expovariate(per_s)) < seconds:
        moments.append(at_s)
    return moments


def arrivals(streams: Sequence[Stream], seconds: float, sizes: Sequence[int], seed: int) -> list[Arrival]:
    """Return all arrivals in order. A caller's requests are the same whoever else is there, so that two loads can be
    compared.
    """
    expected = seconds * sum(stream.per_s for stream in streams)
    if expected > _MOST:
        raise ValueError(f"{expected:,.0f} requests are more than the {_MOST:,} that one plan may hold")
    planned: list[Arrival] = []
    for stream in streams:
        rng = random.Random(f"{seed}/{stream.caller}")
        moments = poisson(stream.per_s, seconds, rng)
        planned += [Arrival(at_s, stream.caller, rng.choice(sizes)) for at_s in moments]
    return sorted(planned, key=lambda arrival: (arrival.at_s, arrival.caller))
