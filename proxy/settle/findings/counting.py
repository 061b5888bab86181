"""The count of what the guard found in one process: by hour, organisation, team, name and what was done, within bounds.

Beside the counts are some of the requests themselves: the first of each minute and kind. Nothing of a text is here. The counts
of an hour only grow, so that reading one twice, or storing it twice, changes nothing.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from cost.times import HOUR_US, MINUTE_US
from guard.ruleset import Action, Finding
from proxy.dispatch.outcome import RequestOutcome

MOST_KEPT: Final = 4_000
"""The most counts that a process keeps; beyond them a new count goes without its name, and then is left out."""
_ROOM_FOR_NAMES: Final = MOST_KEPT - 500
_KEPT_US: Final = 15 * MINUTE_US
"""Time for which a count that was read is kept after its hour, for a control plane that begins anew."""
SHOWN: Final = 20
"""The requests of one minute, team, name and action that are kept one by one; the others are counted."""
MOST_SHOWN: Final = 1_000
"""Requests that a process keeps until they are read."""
MOST_FINDINGS: Final = 20
"""The findings that are kept of one request."""


class Found(msgspec.Struct, frozen=True):
    """What was found and what was done. An empty name is for those beyond the bounds."""

    hour_us: int
    organisation_id: str
    team_id: str
    name: str
    """The kind's, or that of a rule with words or a pattern of its own."""
    label: str
    """The kind, or `words` or `pattern`."""
    action: Action
    side: Literal["input", "output"]


class FoundCount(msgspec.Struct, frozen=True):
    """How often it was found in its hour, so far, and in how many requests."""

    found: Found
    requests: int
    findings: int


class GuardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in which something was found."""

    request_id: str
    at_us: int
    organisation_id: str
    team_id: str
    findings: tuple[Finding, ...]


class FindingsTold(msgspec.Struct, frozen=True):
    """Counts that changed, requests since, and the mark to ask further from."""

    boot_id: str
    counts: tuple[FoundCount, ...]
    mark: int
    requests: tuple[GuardedRequest, ...] = ()


class _Count(msgspec.Struct):
    requests: int
    findings: int
    mark: int


class FindingCounts:
    """The count of what the guard found; an observer of requests."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._counts: dict[Found, _Count] = {}
        self._shown: deque[tuple[int, GuardedRequest]] = deque(maxlen=MOST_SHOWN)
        self._minute_us = 0
        self._of_minute: dict[tuple[str, str, Action], int] = {}
        self._mark = 0
        self.uncounted = 0
        """Findings that found no room in the count."""

    def finished(self, outcome: RequestOutcome) -> None:
        if not outcome.guard:
            return
        self._mark += 1
        now_us = self._now_us()
        hour_us = now_us - now_us % HOUR_US
        for each in outcome.guard:
            self._count(
                Found(hour_us, outcome.organisation_id, outcome.team_id, each.name, each.label, each.action, each.side),
                each.count,
            )
        if self._is_shown(outcome, now_us):
            request = GuardedRequest(
                request_id=outcome.request_id,
                at_us=now_us,
                organisation_id=outcome.organisation_id,
                team_id=outcome.team_id,
                findings=outcome.guard[:MOST_FINDINGS],
            )
            self._shown.append((self._mark, request))

    def _is_shown(self, outcome: RequestOutcome, now_us: int) -> bool:
        minute_us = now_us - now_us % MINUTE_US
        if minute_us != self._minute_us:
            self._minute_us = minute_us
            self._of_minute.clear()
        is_shown = False
        for each in outcome.guard:
            kind = (outcome.team_id, each.name, each.action)
            count = self._of_minute.get(kind, 0)
            if count < SHOWN and (count or len(self._of_minute) < MOST_KEPT):
                self._of_minute[kind] = count + 1
                is_shown = True
        return is_shown

    def changed_after(self, mark: int, boot_id: str) -> FindingsTold:
        """Return the counts that changed since `mark`, and drop old ones that were read by then."""
        old_us = self._now_us() - _KEPT_US - HOUR_US
        for gone in [key for key, found in self._counts.items() if found.mark <= mark and key.hour_us < old_us]:
            del self._counts[gone]
        changed = tuple(
            FoundCount(key, found.requests, found.findings) for key, found in self._counts.items() if found.mark > mark
        )
        while self._shown and self._shown[0][0] <= mark:
            self._shown.popleft()
        return FindingsTold(boot_id, changed, self._mark, tuple(each for _, each in self._shown))

    def _count(self, what: Found, count: int) -> None:
        found = self._counts.get(what)
        if found is None and len(self._counts) >= _ROOM_FOR_NAMES:
            what = msgspec.structs.replace(what, name="", label="")
            found = self._counts.get(what)
        if found is not None:
            found.requests += 1
            found.findings += count
            found.mark = self._mark
        elif len(self._counts) < MOST_KEPT:
            self._counts[what] = _Count(1, count, self._mark)
        else:
            self.uncounted += count
