"""Which engine processes on this machine to start, drain, take back and end: a pure decision."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Phase = Literal["waiting", "starting", "ready", "draining"]
"""`waiting`: it crashed and is started again at `again_at`. The others as for any replica."""

_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process, or the place of one that crashed."""

    name: str
    phase: Phase
    since: float
    """Of the monotonic clock, since when it is in this phase."""
    answered: bool = False
    """Whether it ever answered as healthy, so that it may have work."""
    busy: int | None = None
    """Requests that it runs and keeps waiting, as it said last; None when it does not say."""
    idle_looks: int = 0
    """How often in a row it said that it has none."""
    again_at: float = 0.0
    crashes: int = 0
    """In a row, without having worked for a while."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now, by name."""

    start: int = 0
    """So many new ones."""
    again: tuple[str, ...] = ()
    """Crashed ones whose time has come."""
    drain: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """Draining ones that are wanted after all: they are warm, which a new one is not for minutes."""
    end: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Those that were not ready in time: ended, and counted as crashed."""


def orders(
    children: Sequence[Child],
    desired: int | None,
    at: float,
    *,
    ready_s: float,
    drain_s: float,
    settle_s: float,
) -> Orders:
    """`desired` None is unknown: what is there stays. `settle_s` is how long the gateway may still send work to a drained one."""
    kept = [child for child in children if child.phase != "draining"]
    draining = [child for child in children if child.phase == "draining"]
    wanted = len(kept) if desired is None else desired
    missing, excess = max(0, wanted - len(kept)), max(0, len(kept) - wanted)
    back = sorted(draining, key=lambda child: -child.since)[:missing]
    leaving = sorted(kept, key=_cheapest_to_lose)[:excess]
    staying = [child for child in kept if child not in leaving]
    return Orders(
        start=missing - len(back),
        again=tuple(child.name for child in staying if child.phase == "waiting" and at >= child.again_at),
        drain=tuple(child.name for child in leaving if child.phase != "waiting"),
        keep=tuple(child.name for child in back),
        end=(
            *(child.name for child in leaving if child.phase == "waiting"),
            *(child.name for child in draining if child not in back and _done(child, at, drain_s, settle_s)),
        ),
        failed=tuple(child.name for child in staying if child.phase == "starting" and at - child.since > ready_s),
    )


def wait_s(crashes: int) -> float:
    """Before it is started again: twice as long after each crash, up to a minute."""
    return float(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(crashes - 1, 10)))


def _cheapest_to_lose(child: Child) -> tuple[int, float, float]:
    """The crashed first, then the one that is furthest from ready, then the one with the least work."""
    rank = {"waiting": 0, "starting": 1, "ready": 2}.get(child.phase, 3)
    return rank, float("inf") if child.busy is None else child.busy, -child.since


def _done(child: Child, at: float, drain_s: float, settle_s: float) -> bool:
    drained_for = at - child.since
    if drained_for >= drain_s:
        return True
    return drained_for >= settle_s and (not child.answered or child.idle_looks >= _LOOKS)


_LOOKS: Final = 2
"""One look may fall between a request's arrival and its start."""
