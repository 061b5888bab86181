"""The lines of each batch that run at once in one process, by slack. Pure.

The slack of a batch is the time to its deadline, less the time that its work takes at the measured speed; work that is
due earlier goes before, so it counts too. With much slack lines only fill idle capacity. As it shrinks, the share that
is taken whether or not capacity is idle grows, up to all there is. Shares are divided between teams by their weights,
and within a team the earliest deadline comes first. At own engines lines are begun one by one.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from proxy.batch.batch import WINDOW_US, Batch
from selfhosted.replica import PoolReading

EASY: Final = 0.5
"""The part of the time left for which idle time, which may end, is counted on where there is a choice of options."""
TIGHT: Final = 0.9
"""The part of the time left for which plain calls are counted on."""
_PRESSES: Final = 0.95
"""The needed share of the time left up to which lines only fill idle capacity."""
_PRESSES_ALL: Final = 1.0
"""The needed share from which on a batch takes everything that it may."""
UNKNOWN: Final = 0.1
"""The share that is taken while the speed is not measured, so that it can be."""
SPARED: Final = 0.05
"""The part of a window that is kept free at its end, for the unforeseen."""
_LONGEST_TURN_S: Final = 0.1
"""The most seconds that lines whose time is over wait for engines to have read their prompts."""
_LONGER_S: Final = 1.0
"""The additional seconds of those that hardly press."""
_LOOK_SOON_S: Final = 0.02


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in progress, with the figures that decide its share."""

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
    """The share, from 0 to 1, of the capacity of the batch's targets that is idle, this batch's own lines counted as
    use.
    """
    order: int = 0
    """The order of making, for batches that are alike otherwise."""


class Slack(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a batch has to spare, in seconds, and the share that it takes even where nothing is idle.
    `slack_s` is None without a deadline, or while no speed is known.
    """

    slack_s: float | None
    pressure: float
    needed: float | None = None
    """The share of the time left that its work needs; None where `slack_s` is."""

    @property
    def is_easy(self) -> bool:
        """True where there is time enough for an option that may fail."""
        return self.pressure <= 0 and (self.needed is None or self.needed <= EASY)


_RELAXED: Final = Slack(slack_s=None, pressure=0.0)


def left_s_of(batch: Batch, now_us: int) -> float | None:
    """Return the seconds until a batch is due (`left_until_due_s`); None without a deadline."""
    window_us = WINDOW_US[batch.completion_window]
    if window_us is None or batch.expires_us is None:
        return None
    return left_until_due_s((batch.expires_us - now_us) / 1_000_000, window_us / 1_000_000)


def left_until_due_s(left_s: float, window_s: float) -> float:
    """Return the seconds until a batch is due, that is until shortly before its deadline. A batch that is steered
    towards the deadline itself would end there, and not before.
    """
    return left_s - SPARED * window_s


def slacks(standings: Iterable[Standing], ahead: Callable[[float], float | None]) -> dict[str, Slack]:
    """Return the slack of each batch by id. `ahead` returns the expected speed, in tokens a second, of the next so
    many seconds; None while it is not known.
    """
    found: dict[str, Slack] = {}
    tokens = 0
    for each in sorted(standings, key=_by_deadline):
        tokens += each.tokens_left
        if each.left_s is None:
            found[each.batch_id] = _RELAXED
            continue
        tokens_per_s = ahead(each.left_s)
        if tokens_per_s is None or tokens_per_s <= 0:
            found[each.batch_id] = Slack(slack_s=None, pressure=UNKNOWN if each.left_s > 0 else 1.0)
        else:
            needed_s = tokens / tokens_per_s
            needed = needed_s / each.left_s if each.left_s > 0 else math.inf
            pressure = min(1.0, max(0.0, (needed - _PRESSES) / (_PRESSES_ALL - _PRESSES)))
            found[each.batch_id] = Slack(slack_s=each.left_s - needed_s, pressure=pressure, needed=needed)
    return found


def shares(standings: Sequence[Standing], found: Mapping[str, Slack], at_once: int) -> dict[str, int]:
    """Return the lines of each batch that shall run in this process, at most `at_once` together."""
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


class Turns:
    """Turns at own engines: a line is begun for each engine that has read the prompts of all its requests. An engine
    does not interrupt the reading of a prompt for a later request. So lines are not begun together, nor while a
    caller waits for a first token: a later caller then waits for the prompt of one line at most.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun_at = -math.inf
        self._taken = 0
        self.look_in_s = math.inf
        """Seconds until a line may be begun that waits for its turn; infinite where none does."""

    def begin_round(self) -> None:
        """Begin a round of beginning lines: in one round each engine gives one turn."""
        self._taken = 0
        self.look_in_s = math.inf

    def may_begin(self, reading: PoolReading | None, more: int, pressure: float) -> int:
        """Return the number of `more` lines that may be begun now; `reading` is None where own engines alone do not answer them.

        Lines that press are held for a second at most, and the more they press the shorter.
        """
        if reading is None or more < 1:
            return more
        held_s = self._clock() - self._begun_at
        is_long = pressure > 0 and held_s >= _LONGEST_TURN_S + (1 - pressure) * _LONGER_S
        turns = more if is_long else min(more, max(0, reading.clear - self._taken))
        if turns:
            self._taken += turns
            self._begun_at = self._clock()
        if turns < more:
            self.look_in_s = min(self.look_in_s, max(_LOOK_SOON_S, reading.wait_s))
        return turns


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
    """Divide `most` lines among teams by weight, within a team in the order of `key`, none beyond `wanted`."""
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
