"""The cost that a provider itself tells of a request, and how it is booked."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from cost.meters import Meters
from cost.prices import NANO_PER_USD

_MOST_USD: Final = 100_000
_MOST_TIMES: Final = 10
_MOST_BESIDE_NANOUSD: Final = NANO_PER_USD


class ToldCost(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider's usage object tells what the request costs."""

    fields: tuple[str, ...]
    """Paths in the usage object (`cost_details.total`) whose figures add up to it."""
    with_own_key: tuple[str, ...] = ()
    """Paths that are added where `is_byok` says that another provider bills the operator for them."""
    per_usd: int = 1
    """Units of the figures that a dollar has."""

    def nanousd(self, usage: Mapping[str, Any]) -> int | None:
        """Return the cost that the usage object tells, rounded; None where it tells none, or one that cannot be true."""
        paths = (*self.fields, *self.with_own_key) if usage.get("is_byok") is True else self.fields
        told = [value for value in (_at(usage, path) for path in paths) if value is not None]
        if not told:
            return None
        total = Decimal(0)
        for value in told:
            try:
                figure = Decimal(str(value)) if type(value) in _FIGURES else None
            except InvalidOperation:
                figure = None
            if figure is None or not figure.is_finite() or not 0 <= figure <= _MOST_USD * self.per_usd:
                return None
            total += figure
        return int((total * NANO_PER_USD / self.per_usd).to_integral_value())


_FIGURES: Final = frozenset({int, float, str})


def _at(usage: Mapping[str, Any], path: str) -> Any:
    found: Any = usage
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def possible_nanousd(told: int, ours: int | None) -> tuple[int, int]:
    """Return the part of a told cost that is possible, and the disputed rest.

    Where we know a price, ten times our figure and a dollar for what is charged beside tokens (searches, plug-ins) are
    possible; without one, nothing bounds what is told.
    """
    most = told if ours is None else _MOST_TIMES * ours + _MOST_BESIDE_NANOUSD
    return min(told, most), max(0, told - most)


def differs(told: int, ours: int) -> bool:
    """Return whether two costs differ by more than rounding: a hundredth, and a millionth of a dollar."""
    return abs(told - ours) > max(ours // 100, NANO_PER_USD // 1_000_000)


def divided(told: int, costs: Meters) -> Meters:
    """Return the meters of a told cost: ours, scaled down where they are more, and under `request` what ours do not explain."""
    ours = sum(costs)
    if told < ours:
        costs = tuple(each * told // ours for each in costs)
    return (*costs[:-1], costs[-1] + told - sum(costs))
