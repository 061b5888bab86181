"""What was expected, beside what came: a pool's last day in steps of five minutes, for people who ask whether to trust the forecast.

Of each step it has the busiest minute's work, what had been expected of a busy minute one cold start before, and the replicas
wanted and ready. Memory is bounded.
"""

import math
from collections import deque
from typing import Final

import msgspec

STEP_S: Final = 300.0
_DAY_STEPS: Final = 288
_MINUTE_S: Final = 60.0
# Decisions are seconds apart: more than that many forecasts are never open.
_MOST_OPEN: Final = 4_096


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Five minutes."""

    at_s: float
    """Seconds since the epoch, of its beginning."""
    came: float
    """Work per second of the busiest minute, in prompt tokens."""
    expected: float | None
    """Work per second of a busy minute, as expected one cold start before; None where nothing was."""
    desired: int
    ready: int

    @property
    def sound(self) -> bool:
        """True when all values are in range; the saved state may come from another version or be corrupt."""
        numbers = (self.at_s, self.came, self.expected or 0.0, float(self.desired), float(self.ready))
        return all(0 <= each < math.inf for each in numbers)


class History:
    """The steps of the last day, filled as decisions are made."""

    def __init__(self, steps: list[Step] | None = None) -> None:
        sound = [] if steps is None or not all(each.sound for each in steps) else steps
        self._steps = deque(sound, maxlen=_DAY_STEPS)
        self._open: deque[tuple[float, float]] = deque(maxlen=_MOST_OPEN)
        self._expected: float | None = None
        self._minute: tuple[int, float, int] | None = None
        self._busiest = 0.0
        self._begun_at: float | None = None

    @property
    def steps(self) -> list[Step]:
        """The steps that are over, oldest first."""
        return list(self._steps)

    def expect(self, work_per_s: float, at_s: float) -> None:
        """Note what is expected of a busy minute at a time to come, in seconds since the epoch."""
        self._open.append((at_s, work_per_s))

    def observe(self, work_per_s: float, wall_s: float, *, desired: int, ready: int) -> None:
        """Add the work that came since the last call, and the replicas wanted and ready now."""
        begins = wall_s - wall_s % STEP_S
        if self._begun_at is not None and begins != self._begun_at:
            self._end_minute()
            self._steps.append(Step(self._begun_at, _rounded(self._busiest), self._expected, desired, ready))
            while self._steps[0].at_s <= self._begun_at - _DAY_STEPS * STEP_S:
                # Nobody decided for a while: a day by count would be more by the clock.
                self._steps.popleft()
            self._busiest, self._expected = 0.0, None
        self._begun_at = begins
        while self._open and self._open[0][0] <= wall_s:
            self._expected = _rounded(max(self._open.popleft()[1], self._expected or 0.0))
        minute = int(wall_s // _MINUTE_S)
        if self._minute is not None and self._minute[0] != minute:
            self._end_minute()
        _, work, count = self._minute or (minute, 0.0, 0)
        self._minute = minute, work + work_per_s, count + 1

    def _end_minute(self) -> None:
        if self._minute is not None:
            self._busiest = max(self._busiest, self._minute[1] / self._minute[2])
        self._minute = None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
