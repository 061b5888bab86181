"""A group's turns as they are stored, and as processes are told of them."""

from typing import Final

import msgspec

from selfhosted.model_swap.turns import Phase, Turns
from settings.decoding import DECODE_ERRORS

_MOST_CHARS: Final = 8_000


class StoredTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `Turns` that another process goes on with, in the row of its group."""

    awake: str = ""
    phase: Phase = "sleeping"
    next: str = ""
    took: dict[str, float] = {}


class SleepTold(msgspec.Struct, frozen=True, kw_only=True):
    """A message to every process about a pool that shares its GPUs."""

    pool: str
    rests: bool
    """True while it takes nothing new."""
    since: float = 0.0
    """Time at which that began, on the host's monotonic clock."""
    opens_at: float = 0.0
    """Time at which it could serve somebody who comes now, on that clock, as far as can be told."""
    takes_s: float = 0.0
    """The least seconds that waking it takes from now."""

    def opens_in_s(self, now: float) -> float | None:
        """Return the seconds until it is expected to take requests; None while it does."""
        return max(self.opens_at - now, self.takes_s) if self.rests else None


class SharedTold(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a pool shares, as people are told of them."""

    name: str
    others: tuple[str, ...]
    """The other pools there."""
    phase: Phase
    awake: str | None
    """The pool that is awake, or finishes its work; None during a switch."""
    next: str | None
    """The pool that is about to have the GPUs."""


def written(turns: Turns) -> str:
    """Return the stored text."""
    kept = StoredTurns(awake=turns.awake, phase=turns.phase, next=turns.next, took=turns.took)
    return msgspec.json.encode(kept).decode()


def read(text: str, at: float) -> Turns | None:
    """Return the turns of a stored text, whose phase counts as begun at `at`; None where there is none, or it means nothing to this version."""
    if not text or len(text) > _MOST_CHARS:
        return None
    try:
        kept = msgspec.json.decode(text, type=StoredTurns)
    except DECODE_ERRORS:
        return None
    return Turns(awake=kept.awake, phase=kept.phase, next=kept.next, took=kept.took, since=at)
