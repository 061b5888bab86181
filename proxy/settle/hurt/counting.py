"""The count of requests that ill targets hurt, in one process: by minute, caller, model asked, targets and fate.

A request is counted once, whatever it tried: also one that was refused without an attempt because circuits were open. The
counts of a minute only grow, so that reading or storing one twice changes nothing.
"""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from proxy.dispatch.outcome import RequestOutcome

Fate = Literal["refused", "rerouted", "slow"]
"""What became of it. `refused`: its caller was told an error. `rerouted`: another try answered it. `slow`: it was answered, and its
target took a good part of the time that a first token may take.
"""
SLOW_SHARE: Final = 0.5
"""The part of the time that a first token may take from which on it is slow."""
MOST_KEPT: Final = 4_000
"""The most counts that a process keeps; beyond them a new count goes without its key and model, and then is left out."""
_ROOM_FOR_NAMES: Final = MOST_KEPT - 500
MOST_TARGETS: Final = 8
"""The targets of one request that are named."""
_ILL: Final = frozenset({"error", "rate_limited", "timeout", "cut"})
_FIRST_ERROR: Final = 400
_FIRST_FAILURE: Final = 500
_NO_ROOM: Final = 429


class Hurt(msgspec.Struct, frozen=True):
    """The requests of one caller that the same targets hurt in the same way, within a minute."""

    minute_us: int
    organisation_id: str
    team_id: str
    key_id: str
    model: str
    """A configured name as the caller sent it; empty for any other name."""
    targets: tuple[str, ...]
    """The targets at fault, sorted."""
    fate: Fate


class HurtCount(msgspec.Struct, frozen=True):
    """The number of such requests in their minute, so far."""

    hurt: Hurt
    count: int


class _Count(msgspec.Struct):
    count: int
    mark: int


class HurtCounts:
    """The counts of one process, each with the mark of its last change."""

    def __init__(self) -> None:
        self._counts: dict[Hurt, _Count] = {}

    def add(self, outcome: RequestOutcome, minute_us: int, slow_s: float, mark: int) -> bool:
        """Count a finished request if a target hurt it; return whether it was. A first token after `slow_s` is slow."""
        told = _fate(outcome, slow_s)
        if told is None:
            return False
        fate, targets = told
        hurt = Hurt(
            minute_us,
            outcome.organisation_id,
            outcome.team_id,
            outcome.key_id,
            outcome.asked_model,
            tuple(sorted(targets)[:MOST_TARGETS]),
            fate,
        )
        if hurt not in self._counts and len(self._counts) >= _ROOM_FOR_NAMES:
            hurt = msgspec.structs.replace(hurt, key_id="", model="")
        found = self._counts.get(hurt)
        if found is not None:
            found.count += 1
            found.mark = mark
        elif len(self._counts) < MOST_KEPT:
            self._counts[hurt] = _Count(1, mark)
        return True

    def changed_after(self, mark: int, old_us: int) -> tuple[HurtCount, ...]:
        """Return the counts that changed since `mark`, and drop those before `old_us` that were read by then."""
        for gone in [each for each, found in self._counts.items() if found.mark <= mark and each.minute_us < old_us]:
            del self._counts[gone]
        return tuple(HurtCount(each, found.count) for each, found in self._counts.items() if found.mark > mark)


def _fate(outcome: RequestOutcome, slow_s: float) -> tuple[Fate, set[str]] | None:
    failed = {each.target_id for each in outcome.attempts if each.result in _ILL}
    if outcome.status >= _FIRST_ERROR or outcome.error_code is not None:
        at_fault = failed.union(outcome.out_of_use)
        # Any other 4xx is for the request itself, or for its caller's going away.
        is_ours = not _FIRST_ERROR <= outcome.status < _FIRST_FAILURE or outcome.status == _NO_ROOM
        return ("refused", at_fault) if at_fault and is_ours else None
    if failed:
        return "rerouted", failed
    slow = set(_slow(outcome, slow_s))
    return ("slow", slow) if slow else None


def _slow(outcome: RequestOutcome, slow_s: float) -> Iterator[str]:
    for each in outcome.attempts:
        if each.result == "ok" and each.ttft_s is not None and each.ttft_s >= slow_s:
            yield each.target_id
