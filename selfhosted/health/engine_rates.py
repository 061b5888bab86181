"""Rates of an engine's work, smoothed over the last minute, from its counters."""

import math
from typing import Final

import msgspec

from selfhosted.replica import EngineStats

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


class EngineRates:
    """Exponentially weighted rates of one engine process, with a time constant of one minute.

    The sum of the weights is known, so an engine that was read for ten seconds shows the mean of ten seconds.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._sums: dict[str, float | None] = {"tokens": 0.0, "computed": 0.0, "output": 0.0, "preemptions": 0.0}

    def add(self, before: EngineStats, after: EngineStats) -> None:
        """Add the growth of the counters between two readings of one process."""
        took_s = after.at - before.at
        if took_s <= 0:
            return
        prompt, output = (
            _grown(before.prompt_tokens, after.prompt_tokens),
            _grown(before.output_tokens, after.output_tokens),
        )
        hits = _grown(before.prefix_hits, after.prefix_hits)
        tokens = None if prompt is None or output is None else prompt + output
        found = {
            "tokens": tokens,
            # Where an engine does not tell what it found in its cache, all of a prompt is taken as computed.
            "computed": None if tokens is None else max(0.0, tokens - (hits or 0.0)),
            "output": output,
            "preemptions": _grown(before.preemptions, after.preemptions),
        }
        kept = math.exp(-took_s / _MEMORY_S)
        self._seconds = self._seconds * kept + took_s
        for name, value in found.items():
            held = self._sums[name]
            self._sums[name] = None if value is None else (held or 0.0) * kept + value

    def put_into(self, stats: EngineStats) -> EngineStats:
        """Return the same statistics with these rates; None where the engine does not count, or was read once only."""
        if self._seconds <= 0:
            return stats
        rates = {f"{name}_per_s": None if held is None else held / self._seconds for name, held in self._sums.items()}
        return msgspec.structs.replace(stats, **rates)


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before
