"""How much work will come, one cold start ahead, in a busy minute.

The minutes of the last hour are known, and so is what each time of day and of the week usually brings. Each minute is
carried to the time in question by how those two compare, and the busy one of them, up to which so much of all work
came, is what to expect. A service whose work comes in bursts so gets more than a steady one of the same size. Memory
is bounded.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

BIN_S: Final = 600.0
DAY_BINS: Final = 144
WEEK_BINS: Final = 7 * DAY_BINS
_WINDOW_S: Final = 60.0
# The share that a new day has in what is known of the same time of earlier ones.
_NEWEST: Final = 0.3
_MOST_SCALE: Final = 3.0
# A gap in the observations says nothing about its time.
_GAP_S: Final = 120.0
# An hour. When there are few, the highest and somewhat more is expected.
_MOST_MINUTES: Final = 60
_FEW_MINUTES: Final = 30
_ABOVE: Final = 1.25


# A time of day is that much before and after: bursts are no part of a day's course.
_ABOUT_S: Final = (-1_200.0, 0.0, 1_200.0)


class Seasons(msgspec.Struct):
    """Mean work by time of day and by time of the week, with how often each was seen; and the last hour's minutes."""

    day: list[float] = msgspec.field(default_factory=lambda: [0.0] * DAY_BINS)
    day_seen: list[int] = msgspec.field(default_factory=lambda: [0] * DAY_BINS)
    week: list[float] = msgspec.field(default_factory=lambda: [0.0] * WEEK_BINS)
    week_seen: list[int] = msgspec.field(default_factory=lambda: [0] * WEEK_BINS)
    minutes: list[tuple[float, float | None]] = msgspec.field(default_factory=list)
    """Each with what is usual at its time."""

    @property
    def sound(self) -> bool:
        """Whether it has the shape that it must have: it may come from another version, or from anywhere."""
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
        """The mean about a time, None when no earlier day is known."""
        known = [usual for about_s in _ABOUT_S if (usual := self._between(wall_s + about_s)) is not None]
        # Where only what has just been is known, nothing is known of the day's course.
        return sum(known) / len(known) if len(known) == len(_ABOUT_S) else None

    def add_minute(self, work_per_s: float, wall_s: float) -> None:
        self.minutes.append((work_per_s, self.at(wall_s)))
        del self.minutes[:-_MOST_MINUTES]

    def _between(self, wall_s: float) -> float | None:
        """Between the middles of two bins in proportion."""
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
    """Learns work a second as it arrives, and says what to expect."""

    def __init__(self, seasons: Seasons | None = None) -> None:
        self.seasons = seasons if seasons is not None and seasons.sound else Seasons()
        self._at: tuple[float, float] | None = None
        self._bin: tuple[int, float, float] | None = None
        self._window: tuple[int, float, float] | None = None

    def observe(self, work_per_s: float, at_s: float, wall_s: float) -> None:
        """`work_per_s` is the mean since the last call."""
        last, self._at = self._at, (at_s, wall_s)
        if last is None or not math.isfinite(work_per_s) or not 0 < at_s - last[0] <= _GAP_S:
            return
        seconds = at_s - last[0]
        self._bin = self._gather(self._bin, math.floor(wall_s / BIN_S), work_per_s, seconds, self._bin_ended)
        self._window = self._gather(self._window, math.floor(at_s / _WINDOW_S), work_per_s, seconds, self._window_ended)

    def busy(self, ahead_s: float, attainment: float) -> float | None:
        """Work a second in a minute up to which `attainment` of the work comes; None when nothing is known."""
        if self._at is None or not self.seasons.minutes:
            return None
        then = self.seasons.at(self._at[1] + ahead_s)
        minutes = [work * _times(then, usual) for work, usual in self.seasons.minutes]
        if len(minutes) < _FEW_MINUTES:
            return max(minutes) * _ABOVE
        return _busy(minutes, attainment)

    @staticmethod
    def _gather(
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

    def _window_ended(self, index: int, work: float, seconds: float) -> None:
        del index
        if self._at is not None and seconds >= _WINDOW_S / 2:
            self.seasons.add_minute(work / seconds, self._at[1] - _WINDOW_S / 2)


def _times(then: float | None, now: float | None) -> float:
    """How many times as much usually comes then."""
    if then is None or now is None or now <= 0:
        return 1.0
    return min(_MOST_SCALE, max(1 / _MOST_SCALE, then / now))


def _busy(minutes: Iterable[float], attainment: float) -> float:
    """Minutes up to this one hold so much of all work."""
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
