"""Decision which engine processes on this machine to start, restart, drain, keep and end. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Phase = Literal["waiting", "starting", "ready", "draining", "asleep", "warming"]
"""Phase of an engine process. `waiting`: it crashed and is restarted at `again_at`. `asleep`: nobody wants it, its weights are
in main memory, and it can be woken in seconds. `warming`: it starts in order to sleep. The others as for any replica."""

_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process, or the slot of one that crashed."""

    name: str
    phase: Phase
    since: float
    """Monotonic clock, in seconds, when it entered this phase."""
    answered: bool = False
    """True once it answered as healthy, so that it may have work."""
    busy: int | None = None
    """Requests running and queued by its last statistics; None when unknown."""
    idle_looks: int = 0
    """Consecutive looks at which it had no requests."""
    again_at: float = 0.0
    crashes: int = 0
    """Consecutive crashes without a minute of work between them."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The actions to take now, by process name."""

    start: int = 0
    """Number of new processes to start."""
    again: tuple[str, ...] = ()
    """Crashed processes to restart now."""
    drain: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """Draining processes to take back: they are warm, which a new one is not for minutes."""
    sleep: tuple[str, ...] = ()
    """Drained processes to put to sleep rather than to end."""
    wake: tuple[str, ...] = ()
    warm: int = 0
    """Number of new processes to start that will sleep."""
    hurry: tuple[str, ...] = ()
    """Processes that start in order to sleep, and are wanted before they do."""
    end: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Processes that were not ready in time: to be ended, and counted as crashed."""


def orders(
    children: Sequence[Child],
    desired: int | None,
    at: float,
    *,
    ready_s: float,
    drain_s: float,
    settle_s: float,
    keep_asleep: int = 0,
    warm: int = 0,
) -> Orders:
    """Decide the actions. With `desired` None (unknown) the number stays as it is. `settle_s`: seconds in which the
    gateway may still send work to a drained process. `keep_asleep`: processes that sleep rather than end; `warm`:
    processes that sleep though nobody wanted them yet.
    """
    kept = [child for child in children if child.phase not in ("draining", "asleep", "warming")]
    warming = [child for child in children if child.phase == "warming"]
    asleep = sorted((child for child in children if child.phase == "asleep"), key=lambda child: -child.since)
    draining = [child for child in children if child.phase == "draining"]
    wanted = len(kept) if desired is None else desired
    missing, excess = max(0, wanted - len(kept)), max(0, len(kept) - wanted)
    back = sorted(draining, key=lambda child: -child.since)[:missing]
    woken = asleep[: missing - len(back)]
    hurried = warming[: missing - len(back) - len(woken)]
    leaving = sorted(kept, key=_cheapest_to_lose)[:excess]
    staying = [child for child in kept if child not in leaving]
    done = [child for child in draining if child not in back and _may_end(child, at, drain_s, settle_s)]
    resting, most = asleep[len(woken) :], max(keep_asleep, warm)
    warming = warming[len(hurried) :]
    welcome = warming[: max(0, most - len(resting))]
    places = max(0, most - len(resting) - len(welcome))
    # One that still works when its time is over is ended: sleep would take its cache away.
    sleepy = [child for child in done if child.answered and child.idle_looks >= _IDLE_LOOKS][:places]
    # Those that are wanted come first.
    calm = desired is not None and not missing and all(child.phase == "ready" for child in kept)
    lacking = warm - len(resting) - len(welcome) - len(sleepy)
    return Orders(
        start=missing - len(back) - len(woken) - len(hurried),
        warm=max(0, lacking) if calm else 0,
        hurry=tuple(child.name for child in hurried),
        again=tuple(child.name for child in staying if child.phase == "waiting" and at >= child.again_at),
        drain=tuple(child.name for child in leaving if child.phase != "waiting"),
        keep=tuple(child.name for child in back),
        sleep=tuple(child.name for child in (*sleepy, *(child for child in welcome if child.answered))),
        wake=tuple(child.name for child in woken),
        end=(
            *(child.name for child in leaving if child.phase == "waiting"),
            *(child.name for child in done if child not in sleepy),
            *(child.name for child in resting[most:]),
            *(child.name for child in warming[len(welcome) :]),
        ),
        failed=tuple(
            child.name
            for child in (*staying, *welcome)
            if (child.phase == "starting" or (child.phase == "warming" and not child.answered))
            and at - child.since > ready_s
        ),
    )


def wait_s(crashes: int) -> float:
    """Return the seconds until a restart: 1 after the first crash, doubled after each further one, 60 at most."""
    return float(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(crashes - 1, 10)))


def _cheapest_to_lose(child: Child) -> tuple[int, float, float]:
    """Sort key: crashed processes first, then starting ones, then those with the least work; the youngest first among
    equals.
    """
    rank = {"waiting": 0, "starting": 1, "ready": 2}.get(child.phase, 3)
    return rank, float("inf") if child.busy is None else child.busy, -child.since


def _may_end(child: Child, at: float, drain_s: float, settle_s: float) -> bool:
    drained_for = at - child.since
    if drained_for >= drain_s:
        return True
    return drained_for >= settle_s and (not child.answered or child.idle_looks >= _IDLE_LOOKS)


_IDLE_LOOKS: Final = 2
"""Looks without requests before a drained process ends: a single one may fall between a request's arrival and its
start."""
