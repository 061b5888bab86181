"""Lines that a process has claimed and not begun yet: a claim is a transaction, so many lines are claimed by one.

The size of a group follows the speed at which lines are begun: a group that was gone at once doubles, one that lay
about halves. Near the end of a batch a claim leaves lines for other processes.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from proxy.batch.batch import ClaimedLine

MOST_AHEAD: Final = 256
"""The most lines that one process keeps ahead, of all batches together. More in one group is hardly faster, and a
crash repeats the whole group.
"""
_GONE_SOON_S: Final = 1.0
_LAY_ABOUT_S: Final = 4.0
_SHARED: Final = 8
"""The fraction (one in so many) of a batch's remaining lines that one group takes at most, so that its last lines are
shared between processes.
"""


def next_group(group: int, lasted_s: float) -> int:
    """Return the number of lines that the next claim takes, after a group of `group` lines that lasted `lasted_s`
    seconds until the last was begun.
    """
    if lasted_s < _GONE_SOON_S:
        return min(MOST_AHEAD, group * 2)
    return max(1, group // 2) if lasted_s > _LAY_ABOUT_S else group


def to_claim(missing: int, group: int, left: int, kept: int) -> int:
    """Return the number of lines to claim, where `missing` are begun at once, `left` of the batch have no answer, and
    `kept` are claimed already.
    """
    if missing < 1:
        return 0
    return max(missing, min(group, left // _SHARED, missing + MOST_AHEAD - kept))


class _Kept(msgspec.Struct):
    lines: deque[ClaimedLine]
    claimed_at: float
    group: int


class Prefetch:
    """The lines that one process keeps ahead, by batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return sum(len(each.lines) for each in self._kept.values())

    def wanted(self, batch_id: str, more: int, left: int) -> int:
        """Return the number of lines to claim before `more` lines of a batch are begun."""
        kept = self._kept.get(batch_id)
        if kept is None:
            return to_claim(more, more, left, len(self))
        group = max(more, next_group(kept.group, self._clock() - kept.claimed_at))
        return to_claim(more - len(kept.lines), group, left, len(self))

    def add(self, batch_id: str, lines: Collection[ClaimedLine]) -> None:
        """Keep lines that were claimed just now."""
        kept = self._kept.setdefault(batch_id, _Kept(deque(), 0.0, 1))
        kept.lines.extend(lines)
        kept.claimed_at, kept.group = self._clock(), max(1, len(lines))

    def begin(self, batch_id: str, more: int) -> list[ClaimedLine]:
        """Take out up to `more` lines of a batch, in the order in which they were claimed."""
        kept = self._kept.get(batch_id)
        return [] if kept is None else [kept.lines.popleft() for _ in range(min(more, len(kept.lines)))]

    def stale(self, live: Collection[str], longest_s: float) -> list[ClaimedLine]:
        """Take out the lines that wait in vain: those of batches that are not `live`, and those older than
        `longest_s` seconds.
        """
        found: list[ClaimedLine] = []
        for batch_id in list(self._kept):
            kept = self._kept[batch_id]
            if batch_id not in live or (kept.lines and self._clock() - kept.claimed_at > longest_s):
                found += kept.lines
                del self._kept[batch_id]
        return found
