"""A pool's recent prefix hit rate, from the engines' own counters."""

import math
from typing import Final

_MEMORY_S: Final = 60.0


class HitRate:
    """Exponentially weighted hits per look-up, with a time constant of one minute."""

    def __init__(self) -> None:
        self._queries = 0.0
        self._hits = 0.0
        self._at = float("-inf")

    def add(self, queries: float, hits: float, now: float) -> None:
        kept = math.exp(-max(0.0, now - self._at) / _MEMORY_S)
        self._queries = self._queries * kept + queries
        self._hits = self._hits * kept + hits
        self._at = now

    @property
    def rate(self) -> float | None:
        """Fraction of looked-up prompt tokens that were found, 0 to 1; None until something was looked up."""
        return self._hits / self._queries if self._queries > 0 else None
