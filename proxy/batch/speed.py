"""The measured speed of the tier: tokens a second over the last minutes in which batches had work. Pure but for its clock."""

from collections import deque
from collections.abc import Callable
from typing import Final

_WINDOW_S: Final = 300.0
_LEAST_S: Final = 2.0
_MOST_LOOKS: Final = 600


class Speed:
    """Tokens a second of all processes together, from what batches have left at each look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looks: deque[tuple[float, float]] = deque(maxlen=_MOST_LOOKS)
        """The tokens that were answered since the look before, and the seconds in between."""
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
            self._looks.append((float(done), now - self._seen_at))
        self._seen, self._seen_at = dict(tokens_left), now
        while self._looks and sum(seconds for _, seconds in self._looks) > _WINDOW_S:
            self._looks.popleft()

    @property
    def tokens_per_s(self) -> float | None:
        """The speed; None while too little was seen."""
        seconds = sum(each for _, each in self._looks)
        tokens = sum(each for each, _ in self._looks)
        return tokens / seconds if seconds >= _LEAST_S and tokens > 0 else None
