"""How many lines of which batch run at once in one process, by laxity. Pure.

The laxity of a batch is the time to its deadline, less the time that its work takes at the measured speed; work that is due
earlier goes before, so it counts too. With much laxity lines only fill what interactive work leaves idle. As it shrinks,
the share that is taken without asking whether anything is idle grows, up to all there is. Shares are divided between
teams by their weights, and within a team the earliest deadline comes first.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.batch.batch import WINDOW_US, Batch

EASY: Final = 0.5
"""Up to this share of the time left being needed, a batch waits for idle engines."""
TIGHT: Final = 0.9
"""From this share on it takes everything that it may."""
UNKNOWN: Final = 0.1
"""What is taken of a speed that was never measured, so that it can be."""
SPARED: Final = 0.05
"""The part of a window that is kept free at its end, for what could not be foreseen."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in progress, as far as it matters for its share."""

    batch_id: str
    team_id: str
    weight: float = 1.0
    """The team's weight, above 0."""
    priority: int = 0
    left_s: float | None
    """Seconds until it is due (`left_until_due_s`); None without a deadline."""
    tokens_left: int
    lines_left: int
    """Lines without an answer, those that run included."""
    running: int = 0
    """Lines that run in this process."""
    idle: float
    """The share, from 0 to 1, of the capacity of the batch's targets that nothing uses, this batch's own lines counted as use.
    """
    order: int = 0
    """By the time it was made, for those that are alike otherwise."""


class Laxity(msgspec.Struct, frozen=True, kw_only=True):
    """How much time a batch has to spare, in seconds, and the share that it takes even where nothing is idle.

    `laxity_s` is None without a deadline, or while no speed is known.
    """

    laxity_s: float | None
    pressure: float


_RELAXED: Final = Laxity(laxity_s=None, pressure=0.0)


def left_s_of(batch: Batch, now_us: int) -> float | None:
    """Seconds until a batch is due (`left_until_due_s`); None without a deadline."""
    window_us = WINDOW_US[batch.completion_window]
    if window_us is None or batch.expires_us is None:
        return None
    return left_until_due_s((batch.expires_us - now_us) / 1_000_000, window_us / 1_000_000)


def left_until_due_s(left_s: float, window_s: float) -> float:
    """Seconds until a batch is due, that is until shortly before its deadline. A batch that is steered towards the deadline
    itself would end there, and not before.
    """
    return left_s - SPARED * window_s


def laxities(standings: Iterable[Standing], tokens_per_s: float | None) -> dict[str, Laxity]:
    """The laxity of each batch by id."""
    found: dict[str, Laxity] = {}
    tokens = 0
    for each in sorted(standings, key=_by_deadline):
        tokens += each.tokens_left
        if each.left_s is None:
            found[each.batch_id] = _RELAXED
        elif tokens_per_s is None or tokens_per_s <= 0:
            found[each.batch_id] = Laxity(laxity_s=None, pressure=UNKNOWN if each.left_s > 0 else 1.0)
        else:
            needed_s = tokens / tokens_per_s
            found[each.batch_id] = Laxity(laxity_s=each.left_s - needed_s, pressure=_pressure(needed_s, each.left_s))
    return found


def shares(standings: Sequence[Standing], found: Mapping[str, Laxity], at_once: int) -> dict[str, int]:
    """How many lines of each batch shall run in this process, at most `at_once` together."""
    pressing = {
        each.batch_id: min(each.lines_left, math.ceil(found[each.batch_id].pressure * at_once)) for each in standings
    }
    most = math.ceil(max((found[each.batch_id].pressure for each in standings), default=0.0) * at_once)
    given = _divide(standings, pressing, most, _by_deadline)
    idle = {
        each.batch_id: min(each.lines_left, max(given[each.batch_id], each.running + math.floor(each.idle * at_once)))
        for each in standings
    }
    running = sum(each.running for each in standings)
    most_idle = min(at_once, running + math.floor(max((each.idle for each in standings), default=0.0) * at_once))
    rest = {batch_id: idle[batch_id] - given[batch_id] for batch_id in idle}
    more = _divide(standings, rest, max(0, most_idle - sum(given.values())), _by_priority)
    return {batch_id: given[batch_id] + more[batch_id] for batch_id in given}


def _pressure(needed_s: float, left_s: float) -> float:
    if left_s <= 0:
        return 1.0
    return min(1.0, max(0.0, (needed_s / left_s - EASY) / (TIGHT - EASY)))


def _by_deadline(each: Standing) -> tuple[float, float, int]:
    return (math.inf if each.left_s is None else each.left_s, -each.priority, each.order)


def _by_priority(each: Standing) -> tuple[float, float, int]:
    return (-each.priority, math.inf if each.left_s is None else each.left_s, each.order)


def _divide(
    standings: Sequence[Standing],
    wanted: Mapping[str, int],
    most: int,
    key: Callable[[Standing], tuple[float, float, int]],
) -> dict[str, int]:
    """Divides `most` lines among teams by weight, within a team in the order of `key`, none beyond what is wanted."""
    given = dict.fromkeys(wanted, 0)
    by_team: dict[str, list[Standing]] = {}
    for each in sorted(standings, key=key):
        if wanted[each.batch_id] > 0:
            by_team.setdefault(each.team_id, []).append(each)
    turns = [(0.0, rank, team_id) for rank, team_id in enumerate(by_team)]
    heapq.heapify(turns)
    counts = dict.fromkeys(by_team, 0)
    for _ in range(min(most, sum(wanted.values()))):
        _, rank, team_id = heapq.heappop(turns)
        first = by_team[team_id][0]
        given[first.batch_id] += 1
        counts[team_id] += 1
        if given[first.batch_id] >= wanted[first.batch_id]:
            by_team[team_id].pop(0)
        if by_team[team_id]:
            heapq.heappush(turns, (counts[team_id] / max(first.weight, 1e-6), rank, team_id))
    return given
