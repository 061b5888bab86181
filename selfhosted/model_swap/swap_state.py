"""What is stored of a group's turns, and what processes are told of them."""

from typing import Final

import msgspec

from selfhosted.model_swap.turns import Phase, Turns

_MOST_CHARS: Final = 8_000


class StoredTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `Turns` that another process goes on with, in the row of its group."""

    awake: str = ""
    phase: Phase = "sleeping"
    next: str = ""
    took: dict[str, float] = {}


class SleepTold(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is told of a pool that shares its GPUs."""

    pool: str
    rests: bool
    """True while it takes nothing new."""
    since: float = 0.0
    """When that began, on the host's monotonic clock."""
    opens_at: float = 0.0
    """When it could serve somebody who comes now, on that clock, as far as can be told."""
    takes_s: float = 0.0
    """The least seconds that waking it takes from now."""

    def opens_in_s(self, now: float) -> float | None:
        """Seconds until it is expected to take requests; None while it does."""
        return max(self.opens_at - now, self.takes_s) if self.rests else None


class SharedTold(msgspec.Struct, frozen=True, kw_only=True):
    """What people are told of the GPUs that a pool shares."""

    name: str
    others: tuple[str, ...]
    """The other pools there."""
    phase: Phase
    awake: str | None
    """The pool that is awake, or finishes its work; None during a switch."""
    next: str | None
    """The pool that is about to have the GPUs."""


def written(turns: Turns) -> str:
    """The stored text."""
    kept = StoredTurns(awake=turns.awake, phase=turns.phase, next=turns.next, took=turns.took)
    return msgspec.json.encode(kept).decode()


def read(text: str, at: float) -> Turns | None:
    """Turns from a stored text, whose phase counts as begun at `at`; None where there is none, or it means nothing to this version."""
    if not text or len(text) > _MOST_CHARS:
        return None
    try:
        kept = msgspec.json.decode(text, type=StoredTurns)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Turns(awake=kept.awake, phase=kept.phase, next=kept.next, took=kept.took, since=at)
