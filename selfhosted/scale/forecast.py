"""Forecast of the work one cold start ahead, in a busy minute.

The minutes of the last half-hour are known, and so is what each time of day and of the week usually brings. Each minute is
scaled by the usual work at the forecast time over the usual work at its own. The result is the percentile of those by
work: minutes up to it hold the wanted part of all work. So a service whose work comes in bursts gets more than a steady
one of the same size. Memory is bounded.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

BIN_S: Final = 600.0
DAY_BINS: Final = 144
WEEK_BINS: Final = 7 * DAY_BINS
_WINDOW_S: Final = 60.0
# Weight of a new day in the mean of the same time of earlier days.
_NEWEST: Final = 0.3
_MOST_SCALE: Final = 3.0
# A gap in the observations says nothing about its time.
_GAP_S: Final = 120.0
# An hour. When there are few, the highest is expected.
_MOST_MINUTES: Final = 60
_FEW_MINUTES: Final = 10
# A peak that was over before these is not expected again, but by the time of day.
_LOOKED_AT: Final = 30
# A rise goes on, where these minutes show one that is no chance.
_RISE_MINUTES: Final = 10
_FEWEST_RISING: Final = 5
# Of what it would add by then: most rises end.
_GOES_ON: Final = 0.5
_CERTAIN: Final = 3.0
# What has just begun has its rise before it: users come one after the other, and conversations grow.
_GOES_ON_YOUNG: Final = 1.0
_YOUNG_MINUTES: Final = 15
# Its arrivals show that sooner than its work, of which a few long prompts are much: by quarters of a minute, of the last ten minutes.
_QUARTER_S: Final = 15.0
_QUARTERS_A_MINUTE: Final = 4
_MOST_QUARTERS: Final = 40
_FEWEST_QUARTERS: Final = 8


# A time of day is that much before and after: bursts are no part of a day's course.
_ABOUT_S: Final = (-1_200.0, 0.0, 1_200.0)


class Seasons(msgspec.Struct):
    """Mean work by time of day and by time of the week, with the number of observations of each; and the last hour's
    minutes.
    """

    day: list[float] = msgspec.field(default_factory=lambda: [0.0] * DAY_BINS)
    day_seen: list[int] = msgspec.field(default_factory=lambda: [0] * DAY_BINS)
    week: list[float] = msgspec.field(default_factory=lambda: [0.0] * WEEK_BINS)
    week_seen: list[int] = msgspec.field(default_factory=lambda: [0] * WEEK_BINS)
    minutes: list[tuple[float, float | None]] = msgspec.field(default_factory=list)
    """Pairs of a minute's work per second, and what is usual at its time (None: unknown)."""

    @property
    def sound(self) -> bool:
        """True when the shape and all values are valid; the saved state may come from another version or be corrupt."""
        fresh = Seasons()
        names = ("day", "day_seen", "week", "week_seen")
        same = all(len(getattr(self, name)) == len(getattr(fresh, name)) for name in names)
        minutes = (value for minute in self.minutes for value in minute if value is not None)
        values = (*self.day, *self.week, *self.day_seen, *self.week_seen, *minutes)
        return same and len(self.minutes) <= _MOST_MINUTES and all(0 <= each < math.inf for each in values)

    def add(self, index: int, work: float) -> None:
        _blend(self.day, self.day_seen, index % DAY_BINS, work)
        _blend(self.week, self.week_seen, index % WEEK_BINS, work)

    def at(self, wall_s: float) -> float | None:
        """Return the usual work per second around a time; None when no earlier day is known."""
        known = [usual for about_s in _ABOUT_S if (usual := self._between(wall_s + about_s)) is not None]
        # With only some of the bins around it known, they may be today's own, which is no forecast.
        return sum(known) / len(known) if len(known) == len(_ABOUT_S) else None

    def add_minute(self, work_per_s: float, wall_s: float) -> None:
        self.minutes.append((work_per_s, self.at(wall_s)))
        del self.minutes[:-_MOST_MINUTES]

    def _between(self, wall_s: float) -> float | None:
        """Interpolate linearly between the middles of two bins."""
        place = wall_s / BIN_S - 0.5
        index, part = math.floor(place), place - math.floor(place)
        before, after = self._bin(index), self._bin(index + 1)
        if before is None or after is None:
            return after if before is None else before
        return before * (1 - part) + after * part

    def _bin(self, index: int) -> float | None:
        day, week = index % DAY_BINS, index % WEEK_BINS
        if not self.day_seen[day]:
            return None
        seen = self.week_seen[week]
        weight = seen / (seen + 1)
        return self.week[week] * weight + self.day[day] * (1 - weight)


class Forecast:
    """A forecast of work per second, learned as work arrives."""

    def __init__(self, seasons: Seasons | None = None) -> None:
        self.seasons = seasons if seasons is not None and seasons.sound else Seasons()
        self._at: tuple[float, float] | None = None
        self._bin: tuple[int, float, float] | None = None
        self._window: tuple[int, float, float] | None = None
        self._quarter: tuple[int, float, float] | None = None
        self._quarters: deque[float] = deque(maxlen=_MOST_QUARTERS)

    def observe(self, work_per_s: float, at_s: float, wall_s: float, *, arrivals_per_s: float | None = None) -> None:
        """Add an observation. `work_per_s` and `arrivals_per_s` are means since the last call."""
        last, self._at = self._at, (at_s, wall_s)
        if last is None or not math.isfinite(work_per_s) or not 0 < at_s - last[0] <= _GAP_S:
            return
        seconds = at_s - last[0]
        self._bin = self._accumulate(self._bin, math.floor(wall_s / BIN_S), work_per_s, seconds, self._bin_ended)
        self._window = self._accumulate(
            self._window, math.floor(at_s / _WINDOW_S), work_per_s, seconds, self._window_ended
        )
        if arrivals_per_s is not None and self._is_young:
            self._quarter = self._accumulate(
                self._quarter, math.floor(at_s / _QUARTER_S), arrivals_per_s, seconds, self._quarter_ended
            )

    @property
    def _is_young(self) -> bool:
        return len(self.seasons.minutes) < _YOUNG_MINUTES

    def busy(self, ahead_s: float, attainment: float, *, new: bool = False) -> float | None:
        """Return the work per second of the minute up to which `attainment` of the work comes, `ahead_s` from now; None
        when nothing is known. With `new`, what has just begun to rise is expected to go on so.
        """
        if self._at is None or not self.seasons.minutes:
            return None
        then = self.seasons.at(self._at[1] + ahead_s)
        minutes = [work * _ratio(then, usual) for work, usual in self.seasons.minutes[-_LOOKED_AT:]]
        busy = max(minutes) if len(minutes) < _FEW_MINUTES else _busy_minute(minutes, attainment)
        rise = rise_per_s(minutes[-_RISE_MINUTES:])
        new = new and self._is_young
        now = minutes[-1]
        then = min(now * _MOST_SCALE, now + rise * ahead_s * (_GOES_ON_YOUNG if new else _GOES_ON))
        return max(busy, then, self._rising(minutes, ahead_s, _GOES_ON_YOUNG if new else _GOES_ON))

    def _rising(self, minutes: Sequence[float], ahead_s: float, goes_on: float) -> float:
        """Return the work `ahead_s` from now of what has just begun, by its arrivals; 0 where they do not rise, or it is older."""
        quarters = list(self._quarters)
        if not self._is_young or len(quarters) < _FEWEST_QUARTERS:
            return 0.0
        rise = rise_per_s(quarters, _QUARTER_S)
        mean = sum(quarters) / len(quarters)
        if not rise or not mean:
            return 0.0
        now = mean + rise * _QUARTER_S * (len(quarters) - 1) / 2
        some = minutes[-math.ceil(len(quarters) / _QUARTERS_A_MINUTE) :]
        return sum(some) / len(some) / mean * min(now * _MOST_SCALE, now + rise * ahead_s * goes_on)

    @staticmethod
    def _accumulate(
        held: tuple[int, float, float] | None,
        index: int,
        work_per_s: float,
        seconds: float,
        ended: Callable[[int, float, float], None],
    ) -> tuple[int, float, float]:
        if held is not None and held[0] == index:
            return index, held[1] + work_per_s * seconds, held[2] + seconds
        if held is not None:
            ended(*held)
        return index, work_per_s * seconds, seconds

    def _bin_ended(self, index: int, work: float, seconds: float) -> None:
        if seconds >= BIN_S / 2:
            self.seasons.add(index, work / seconds)

    def _quarter_ended(self, index: int, arrivals: float, seconds: float) -> None:
        del index
        if seconds < 2 * _QUARTER_S:
            self._quarters.append(arrivals / seconds)

    def _window_ended(self, index: int, work: float, seconds: float) -> None:
        del index
        if self._at is not None and seconds >= _WINDOW_S / 2:
            self.seasons.add_minute(work / seconds, self._at[1] - _WINDOW_S / 2)


def rise_per_s(minutes: Sequence[float], each_s: float = _WINDOW_S) -> float:
    """Return how much the rate grows each second by the straight line through the minutes, or what takes `each_s`; 0 where they are few, or
    scatter so much that it may be chance, or where it falls.
    """
    count = len(minutes)
    if count < _FEWEST_RISING:
        return 0.0
    middle, mean = (count - 1) / 2, sum(minutes) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * work for place, work in enumerate(minutes)) / spread
    left = sum((work - mean - slope * (place - middle)) ** 2 for place, work in enumerate(minutes))
    error = math.sqrt(left / (count - 2) / spread)
    return slope / each_s if slope > _CERTAIN * error else 0.0


def _ratio(then: float | None, now: float | None) -> float:
    """Return the ratio of the usual work then to the usual work now, between 1/3 and 3; 1 when unknown."""
    if then is None or now is None or now <= 0:
        return 1.0
    return min(_MOST_SCALE, max(1 / _MOST_SCALE, then / now))


def _busy_minute(minutes: Iterable[float], attainment: float) -> float:
    """Return the smallest minute such that it and the smaller ones hold `attainment` of all work."""
    ordered = sorted(minutes)
    wanted, below = attainment * sum(ordered), 0.0
    for work in ordered:
        below += work
        if below >= wanted:
            return work
    return 0.0


def _blend(values: list[float], seen: list[int], index: int, value: float) -> None:
    seen[index] += 1
    values[index] += (value - values[index]) * max(_NEWEST, 1 / seen[index])
