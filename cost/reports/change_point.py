"""Since when a series is higher or lower: one lasting step, told only where it is beyond the series' own noise.

Where it would be: values of one season alone are compared, such as those of one hour of the day on weekdays, so a daily rhythm is no
step; of each pair only the order counts (Mann and Whitney's statistic, summed up over the seasons), so one wild hour is none either.

Whether it is: what followed is cut into days from there on, and each is compared with the same hours of the days before, as the
logarithm of their sums. Hours of one day hang together and days hardly do, so days are what is counted: the step has to be several times
as large as the days before differ among themselves (Student's statistic).

At which hour: order alone takes two cents more at ten in the evening for as much as three times the spend from the next afternoon on. So
from a day before that place on the hour is taken from which two means of the logarithms fit best (least squares).
"""

from collections.abc import Hashable, Sequence
from math import log, sqrt
from statistics import fmean
from typing import Final, NamedTuple

LEAST_T: Final = 5.0
"""Student's statistic from which a step is beyond noise: there are many places where one may seem to be."""
LEAST_DAYS: Final = 4
"""Days before a step that have to be like those after it: fewer tell nothing of how days differ."""
_LEAST_HOURS: Final = 4
"""Hours of what followed, where not even a day did."""
_LEAST_NOISE: Final = 0.05
"""Days differ by a twentieth at least, whatever the few that are known did."""
_NOTHING: Final = 0.01
"""Part of the usual that a day without anything counts as: it has no logarithm."""


class Step(NamedTuple):
    """A lasting step."""

    place: int
    """Index of the first value after it."""
    t: float
    """Its size beside the noise."""


def find_step(values: Sequence[float], seasons: Sequence[Hashable], *, a_day: int, rises: bool) -> Step | None:
    """Return the clearest step up, or down, of values of which `a_day` make a day; None where all is within the noise. Places of one
    `season` are comparable.
    """
    sign = 1 if rises else -1
    for place in _places(values, seasons, a_day, sign):
        t = _beyond_noise(values, seasons, place, a_day) * sign
        if t >= LEAST_T:
            sharper = _sharpened(values, seasons, place, a_day, sign)
            t_there = _beyond_noise(values, seasons, sharper, a_day) * sign
            return Step(sharper, t_there) if t_there >= LEAST_T else Step(place, t)
    return None


def _places(values: Sequence[float], seasons: Sequence[Hashable], a_day: int, sign: int) -> list[int]:
    """Return the likeliest place of a step in each day, the likeliest of all first."""
    members: dict[Hashable, list[int]] = {}
    for place, season in enumerate(seasons):
        members.setdefault(season, []).append(place)
    spreads = {season: _spread([values[place] for place in found]) for season, found in members.items()}
    before = dict.fromkeys(members, 0)
    statistic, spread = 0, 0.0
    found: dict[int, tuple[float, int]] = {}
    for place, season in enumerate(seasons[:-1]):
        own, value = members[season], values[place]
        # The value at `place` goes over to those before the step.
        statistic += sum((values[each] > value) - (values[each] < value) for each in own)
        was, before[season] = before[season], before[season] + 1
        spread += spreads[season] * ((was + 1) * (len(own) - was - 1) - was * (len(own) - was))
        if spread > 0 and statistic * sign > 0:
            day = (place + 1) // a_day
            found[day] = max(found.get(day, (0.0, 0)), (abs(statistic) / sqrt(spread), place + 1))
    return [place for _, place in sorted(found.values(), reverse=True)]


def _sharpened(values: Sequence[float], seasons: Sequence[Hashable], place: int, a_day: int, sign: int) -> int:
    """Return the place, no more than a day before this one, from which two levels fit best."""
    first = max(1, place - a_day)
    least = fmean(values) * _NOTHING
    logs = [log(max(each, least)) for each in values]
    usual: dict[Hashable, list[float]] = {}
    for season, value in zip(seasons[:first], logs, strict=False):
        usual.setdefault(season, []).append(value)
    means = {season: fmean(found) for season, found in usual.items()}
    # A season that was not there before has nothing usual, so its values say nothing of a step.
    beside = [value - means.get(season, value) for season, value in zip(seasons, logs, strict=True)]
    count, total, before = len(beside), sum(beside), sum(beside[:first])
    best, found = 0.0, place
    for at in range(first, count):
        height = (total - before) / (count - at) - before / at
        fit = height * height * at * (count - at) if height * sign > 0 else 0.0
        if fit > best:
            best, found = fit, at
        before += beside[at]
    return found


def _spread(values: Sequence[float]) -> float:
    """Return the variance of the statistic for one value before and one after; equal values have no order."""
    count = len(values)
    if count < 2:  # noqa: PLR2004 - a pair
        return 0.0
    alike = [values.count(each) for each in set(values)]
    tied = sum(each**3 - each for each in alike) / (count**3 - count)
    return (count + 1) / 3 * (1 - tied)


def _beyond_noise(values: Sequence[float], seasons: Sequence[Hashable], place: int, a_day: int) -> float:
    """Return the mean logarithm of what followed beside the same hours before, divided by its error; 0 where too little is known."""
    steps: list[float] = []
    noises: list[float] = []
    known = 0
    for start in range(place, len(values), a_day):
        hours = range(start, min(start + a_day, len(values)))
        if len(hours) < min(_LEAST_HOURS, a_day):
            continue
        backs = range((hours[-1] - place) // a_day * a_day + a_day, hours[0] + 1, a_day)
        alike = [back for back in backs if all(seasons[hour - back] == seasons[hour] for hour in hours)]
        # Where too few days are of the same kind all are taken: then their differences are a part of the noise.
        found = alike if len(alike) >= LEAST_DAYS else backs
        same = [sum(values[hour - back] for hour in hours) for back in found]
        if len(same) < LEAST_DAYS or not any(same):
            continue
        least = fmean(same) * _NOTHING
        usual = [log(max(each, least)) for each in same]
        steps.append(log(max(sum(values[hour] for hour in hours), least)) - fmean(usual))
        mean = fmean(usual)
        noises.append(sum((each - mean) ** 2 for each in usual) / (len(usual) - 1))
        known = max(known, len(same))
    if not steps:
        return 0.0
    noise = max(sqrt(fmean(noises)), _LEAST_NOISE)
    return fmean(steps) / (noise * sqrt(1 / len(steps) + 1 / known))
