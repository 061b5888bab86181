"""The measured speed of the tier: tokens a second in the time in which batches had work. Pure but for its clock."""

import math
from collections.abc import Callable
from typing import Final

import msgspec

_LEAST_S: Final = 2.0
_SPANS_S: Final = (300.0, 10_800.0, 43_200.0)
"""Over how long the speed is a mean, by how far ahead is asked."""


class _Mean(msgspec.Struct):
    """Tokens and seconds, the older the less."""

    span_s: float
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        fades = math.exp(-seconds / self.span_s)
        self.tokens = self.tokens * fades + tokens
        self.seconds = self.seconds * fades + seconds

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds


class Speed:
    """Tokens a second of all processes together, from what batches have left at each look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._means = [_Mean(span_s) for span_s in _SPANS_S]
        self._known_s = 0.0
        self._seen: dict[str, int] = {}
        self._seen_at: float | None = None

    def look(self, tokens_left: dict[str, int]) -> None:
        """Takes note of what each batch in progress has left."""
        now = self._clock()
        if self._seen_at is not None and now <= self._seen_at:
            return
        # A batch that is gone was answered to its end, or closed; what was done of it is not known.
        if self._seen_at is not None and self._seen and self._seen.keys() <= tokens_left.keys():
            done = sum(max(0, before - tokens_left[name]) for name, before in self._seen.items())
            self._known_s += now - self._seen_at
            for mean in self._means:
                mean.add(done, now - self._seen_at)
        self._seen, self._seen_at = dict(tokens_left), now

    @property
    def tokens_per_s(self) -> float | None:
        """The speed of the last minutes; None while too little was seen."""
        return self.ahead(0.0)

    def ahead(self, left_s: float) -> float | None:
        """The speed to expect of the next so many seconds: that of about the last so many, so that an hour in which there was
        little room does not count for all hours of a day. None while too little was seen.
        """
        mean = next((each for each in self._means if each.span_s >= left_s), self._means[-1])
        return mean.per_s if self._known_s >= _LEAST_S and mean.tokens > 0 else None
