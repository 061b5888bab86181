"""The count of refusals in one process: by minute, organisation, team, key, model and reason, within bounds.

Beside the counts are some of the refused requests themselves: the first of each minute and kind.

A refusal is an error reply that callers can do something about, or that is for want of room: any 4xx, and 503. The counts
of a minute only grow, so that reading one twice, or storing it twice, changes nothing.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from cost.times import MINUTE_US
from proxy.dispatch.outcome import RequestOutcome
from proxy.errors import Overloaded, code_of
from proxy.settle.hurt.counting import HurtCount, HurtCounts
from proxy.settle.observers.logs import safe_name, told_message

MOST_KEPT: Final = 4_000
"""The most counts that a process keeps; beyond them a new count goes without its key and model, and then is left out."""
_ROOM_FOR_NAMES: Final = MOST_KEPT - 500
_KEPT_US: Final = 15 * MINUTE_US
"""Time for which a count that was read is kept, for a control plane that begins anew."""
SHOWN: Final = 20
"""The refused requests of one minute, team, key, model and reason that are kept one by one; the others are counted."""
MOST_SHOWN: Final = 1_000
"""Refused requests that a process keeps until they are read."""
_FIRST: Final = 400
_CALLER_GONE: Final = 499
_OUR_WORDS: Final = frozenset({402, 429, 503})
_UNAVAILABLE: Final = 503


class Refused(msgspec.Struct, frozen=True):
    """The kind of a refusal. Empty names are not known: the request was refused before they were."""

    minute_us: int
    organisation_id: str
    team_id: str
    key_id: str
    model: str
    """A configured name as the caller sent it; empty for any other name."""
    reason: str
    """The code that the caller read."""
    status: int


class RefusedCount(msgspec.Struct, frozen=True):
    """The number of such refusals in their minute, so far."""

    refused: Refused
    count: int


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A refused request of a known team, that no model was asked for."""

    request_id: str
    at_us: int
    organisation_id: str
    team_id: str
    key_id: str
    model: str
    reason: str
    status: int
    message: str
    """The message that the caller was sent, without text that it may have typed itself."""
    end_user: str = ""


class RefusalsTold(msgspec.Struct, frozen=True):
    """Counts that changed, refused requests since, and the mark to ask further from."""

    boot_id: str
    counts: tuple[RefusedCount, ...]
    mark: int
    requests: tuple[RefusedRequest, ...] = ()
    hurt: tuple[HurtCount, ...] = ()
    """Requests that ill targets hurt, since the same mark."""


class _Count(msgspec.Struct):
    count: int
    mark: int


class Refusals:
    """The count of refusals, and of requests that ill targets hurt; an observer of requests."""

    def __init__(self, now_us: Callable[[], int], slow_s: Callable[[], float] = lambda: math.inf) -> None:
        """`slow_s` returns the seconds from which on a first token is slow."""
        self._now_us = now_us
        self._slow_s = slow_s
        self._hurt = HurtCounts()
        self._counts: dict[Refused, _Count] = {}
        self._shown: deque[tuple[int, RefusedRequest]] = deque(maxlen=MOST_SHOWN)
        self._mark = 0
        self.uncounted = 0
        """Refusals that found no room in the count."""

    def finished(self, outcome: RequestOutcome) -> None:
        if self._hurt.add(outcome, self._minute_us(), self._slow_s(), self._mark + 1):
            self._mark += 1
        if not is_refusal(outcome.status):
            return
        reason = safe_name(outcome.error_code or "") or "invalid_request"
        if outcome.attempts and outcome.status not in {429, _UNAVAILABLE}:
            # A provider's own code may be anything.
            reason = "rejected_upstream"
        count = self._count(
            Refused(
                self._minute_us(),
                outcome.organisation_id,
                outcome.team_id,
                outcome.key_id,
                outcome.asked_model,
                reason,
                outcome.status,
            )
        )
        # A request that reached a model is in the ledger, and one without a team has no page to be shown on.
        if outcome.team_id and not outcome.attempts and count <= SHOWN:
            self._shown.append((self._mark, self._as_request(outcome, reason)))

    def _as_request(self, outcome: RequestOutcome, reason: str) -> RefusedRequest:
        # Of a limit or for want of room every name is ours; of a request that is wrong some may be the caller's words.
        ours = outcome.status in _OUR_WORDS
        message = told_message(outcome.error_message, says_names=ours) or ""
        if outcome.end_user:
            # It has a column of its own, which is emptied where they are erased.
            message = message.replace(f"`{outcome.end_user}`", "`…`")
        return RefusedRequest(
            request_id=outcome.request_id,
            at_us=self._now_us(),
            organisation_id=outcome.organisation_id,
            team_id=outcome.team_id,
            key_id=outcome.key_id,
            model=outcome.asked_model,
            end_user=outcome.end_user,
            reason=reason,
            status=outcome.status,
            message=message,
        )

    def count_shed(self) -> None:
        """Count a refusal for overload, before anything was read of the request."""
        self._count(Refused(self._minute_us(), "", "", "", "", code_of(Overloaded), Overloaded.fault.status))

    def changed_after(self, mark: int, boot_id: str) -> RefusalsTold:
        """Return the counts that changed since `mark`, and drop old ones that were read by then."""
        old_us = self._now_us() - _KEPT_US
        for gone in [key for key, found in self._counts.items() if found.mark <= mark and key.minute_us < old_us]:
            del self._counts[gone]
        changed = tuple(RefusedCount(key, found.count) for key, found in self._counts.items() if found.mark > mark)
        while self._shown and self._shown[0][0] <= mark:
            self._shown.popleft()
        hurt = self._hurt.changed_after(mark, old_us)
        return RefusalsTold(boot_id, changed, self._mark, tuple(each for _, each in self._shown), hurt)

    def _minute_us(self) -> int:
        now_us = self._now_us()
        return now_us - now_us % MINUTE_US

    def _count(self, refused: Refused) -> int:
        """Count one more, and return the number by now; without room for it, more than are shown."""
        self._mark += 1
        found = self._counts.get(refused)
        if found is None and len(self._counts) >= _ROOM_FOR_NAMES:
            refused = msgspec.structs.replace(refused, key_id="", model="")
            found = self._counts.get(refused)
        if found is not None:
            found.count += 1
            found.mark = self._mark
            return found.count
        if len(self._counts) < MOST_KEPT:
            self._counts[refused] = _Count(1, self._mark)
            return 1
        self.uncounted += 1
        return SHOWN + 1


def is_refusal(status: int) -> bool:
    """Return True for the statuses of refusals: 4xx and 503. A caller that hung up was not refused."""
    return (_FIRST <= status < _CALLER_GONE) or status == _UNAVAILABLE
