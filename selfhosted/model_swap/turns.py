"""The choice of the awake pool among several that share GPUs: a pure decision, from who waits, who works and how the engines are.

One pool is *awake* at a time; the others' engines sleep, their weights in main memory or gone. A switch costs time: the awake
pool drains, its engines fall asleep, the next one's wake. So it is made once those who wait have waited, added up, as many
seconds as it would cost those who are served (the rule of who rents until he has paid the price). A pool that works is never put to sleep before it was awake for a while, so
that two busy pools do not take turns all the time; one that serves nobody makes room at once after that, and before it as soon
as those who wait have waited for half of the price; and a switch comes at the latest
when somebody has waited for `most_wait_s`, whatever it costs, longest wait first. So with N pools nobody waits longer than that
plus N times what a pool keeps the GPUs and a switch takes, as long as engines do as they are told.

Unknown is not idle: a pool whose load is not known is neither put to sleep early nor taken to serve nobody.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Phase = Literal["awake", "draining", "sleeping", "waking"]
"""`awake`: the pool of that name serves. `draining`: it takes nothing new, and finishes what it has. `sleeping`: all but the next
one's engines are put to sleep. `waking`: the next one's are woken."""

START_S: Final = 900.0
"""Seconds that an engine which does not answer may take to start, while the GPUs are kept free for it."""
MOVE_S: Final = 180.0
"""Seconds that engines may take to fall asleep, or to wake."""
DOWN_S: Final = 240.0
"""Seconds for which the GPUs are kept free for an engine that is down, while others wait: it starts only while they are free."""
RETRY_S: Final = 900.0
"""Seconds for which a pool that could not be woken is left alone."""
_FORGET_S: Final = 60.0
"""Seconds after which a refused request that did not come back counts as waiting no more."""
_LATELY: Final = 0.3
"""Weight of the newest measurement in what a step usually takes."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a group's pools take turns, from its configuration."""

    pools: tuple[str, ...]
    least_awake_s: float
    most_wait_s: float
    drain_s: float
    settle_s: float = 4.0
    """Seconds after which every gateway has noticed that a pool takes nothing new, and its engines' statistics show it."""
    switch_s: float
    """Seconds that falling asleep and waking are taken to take together, until it was measured."""


class PoolNow(msgspec.Struct, frozen=True, kw_only=True):
    """One pool at one moment."""

    waiting: int = 0
    """Requests that wait for it at the gateways."""
    turned_away: int = 0
    """Requests that went elsewhere, or were refused, for want of it since the last decision."""
    running: int | None = 0
    """Requests in its engines, running or queued; None when that is not known."""
    batch: int = 0
    """Of those, requests that nobody watches: together they count as one."""
    up: int = 0
    """Engines that are awake."""
    asleep: int = 0
    starting: int = 0
    """Engines that never answered yet: they may be taking memory for their weights."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that wait for a pool that sleeps."""

    since: float
    """Time at which the first of them came, on the monotonic clock."""
    seen: float
    """Time of the last sign of any."""
    waited: float = 0.0
    """Seconds that all of them have waited, added up."""


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """The pool whose turn it is, and what is remembered of the others. Times are on the monotonic clock."""

    awake: str = ""
    """The pool that has the GPUs, or had them last; empty before the first."""
    phase: Phase = "sleeping"
    next: str = ""
    """The pool that gets them; empty while none is about to."""
    since: float = 0.0
    """Time at which the phase began."""
    needs: dict[str, Need] = {}
    took: dict[str, float] = {}
    """Usual seconds of a step, such as `wake llama`; of those that were measured."""
    failed: dict[str, float] = {}
    """Times until which pools are left alone."""


class Moves(msgspec.Struct, frozen=True, kw_only=True):
    """The engines to be put to sleep and woken now."""

    sleep: tuple[str, ...] = ()
    """Pools whose engines are to be put to sleep."""
    wake: str | None = None


def decide(
    rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow], at: float, passed_s: float
) -> tuple[Turns, Moves]:
    """Return the turns from now on, and the moves for them. `passed_s`: seconds since the last decision; `now_of` has every pool."""
    turns = _reset(turns, rules, at) if turns.awake not in rules.pools or _unknown(turns, rules) else turns
    turns = _with_needs(rules, turns, now_of, at, passed_s)
    match turns.phase:
        case "awake":
            turns = _while_awake(rules, turns, now_of, at)
        case "draining":
            turns = _while_draining(rules, turns, now_of[turns.awake], at)
        case "sleeping":
            turns = _while_falling_asleep(rules, turns, now_of, at)
        case "waking":
            turns = _while_waking(rules, turns, now_of, at)
    return turns, _moves(rules, turns, now_of)


def opens_in_s(rules: Rules, turns: Turns, pool: str, at: float) -> float:
    """Return the expected seconds until a request that comes now could be served by the pool, from what steps usually take."""
    if turns.phase == "awake" and turns.awake == pool:
        return 0.0
    gone, ahead = at - turns.since, 0.0
    if turns.phase == "waking":
        ahead = max(0.0, _usual(rules, turns, "wake", turns.next) - gone)
    elif turns.phase == "sleeping":
        ahead = max(0.0, _usual(rules, turns, "sleep", turns.awake) - gone) + _usual(rules, turns, "wake", turns.next)
    elif turns.phase == "draining":
        ahead = max(0.0, _usual(rules, turns, "drain", turns.awake) - gone) + _switch_s(
            rules, turns, turns.awake, turns.next
        )
    if turns.next == pool:
        return ahead
    kept = rules.least_awake_s if turns.next else max(0.0, rules.least_awake_s - gone)
    other = turns.next or turns.awake
    return ahead + kept + _usual(rules, turns, "drain", other) + _switch_s(rules, turns, other, pool)


def takes_s(rules: Rules, turns: Turns, pool: str) -> float:
    """Return the least seconds in which the pool can be woken while another one is awake and serves nobody."""
    return rules.settle_s + _switch_s(rules, turns, turns.awake, pool)


def rests(turns: Turns | None, pool: str) -> bool:
    """Return whether the pool takes nothing new. None: nobody has decided yet, so that nobody is awake."""
    return turns is None or turns.phase != "awake" or turns.awake != pool


def is_step(before: Turns, turns: Turns) -> bool:
    """Return whether these turns are a step on from those before, whatever else was learnt meanwhile."""
    return (before.phase, before.awake, before.next) != (turns.phase, turns.awake, turns.next)


def pays(turns: Turns | None) -> str | None:
    """Return the pool that the GPUs' time belongs to: the one that is awake or drains, then the one that is woken next."""
    if turns is None:
        return None
    return (turns.awake if turns.phase in ("awake", "draining") else turns.next) or None


# What is remembered.


def _unknown(turns: Turns, rules: Rules) -> bool:
    return turns.phase != "awake" and turns.next not in rules.pools


def _reset(turns: Turns, rules: Rules, at: float) -> Turns:
    """Return the turns of pools that were never, or no longer are, those of the configuration."""
    first = turns.next if turns.next in rules.pools else rules.pools[0]
    return Turns(awake=first, phase="sleeping", next=first, since=at, took=turns.took)


def _with_needs(rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow], at: float, passed_s: float) -> Turns:
    """Add up who waits for pools that are not awake. Who was turned away counts as having waited for one switch."""
    needs: dict[str, Need] = {}
    for pool in rules.pools:
        now, before = now_of[pool], turns.needs.get(pool)
        if not rests(turns, pool):
            continue
        wants = bool(now.waiting or now.turned_away)
        if before is None and not wants:
            continue
        need = before or Need(since=at, seen=at)
        if not wants and at - need.seen > _FORGET_S:
            continue
        waited = now.waiting * passed_s + now.turned_away * _switch_s(rules, turns, turns.awake, pool)
        needs[pool] = Need(since=need.since, seen=at if wants else need.seen, waited=need.waited + waited)
    failed = {pool: until for pool, until in turns.failed.items() if until > at}
    return msgspec.structs.replace(turns, needs=needs, failed=failed)


def _usual(rules: Rules, turns: Turns, step: str, pool: str) -> float:
    guessed = rules.settle_s if step == "drain" else rules.switch_s / 2
    return turns.took.get(f"{step} {pool}", guessed)


def _switch_s(rules: Rules, turns: Turns, before: str, after: str) -> float:
    return _usual(rules, turns, "sleep", before) + _usual(rules, turns, "wake", after)


def _measured(turns: Turns, step: str, pool: str, seconds: float) -> dict[str, float]:
    known = turns.took.get(f"{step} {pool}")
    usual = seconds if known is None else known + _LATELY * (seconds - known)
    return {**turns.took, f"{step} {pool}": round(usual, 3)}


# The phases.


def _while_awake(rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow], at: float) -> Turns:
    own = now_of[turns.awake]
    if not own.up and own.asleep:
        # Somebody else put it to sleep, or it was started anew.
        return _step(turns, at, phase="waking", next=turns.awake)
    pool = _due(rules, turns, own, at)
    if pool is None:
        return turns
    return _step(turns, at, phase="draining" if own.up else "sleeping", next=pool)


def _due(rules: Rules, turns: Turns, own: PoolNow, at: float) -> str | None:
    """Return the pool that should be awake instead; None where none should."""
    kept = own.up and at - turns.since < rules.least_awake_s
    running = own.running or 0
    served = max(1, running - own.batch + min(1, own.batch)) + own.waiting
    idle = not own.up or (own.running == 0 and not own.waiting)
    late: list[tuple[float, str]] = []
    worth: list[tuple[float, str]] = []
    for pool, need in turns.needs.items():
        if pool == turns.awake or pool in turns.failed:
            continue
        price = _switch_s(rules, turns, turns.awake, pool) + _switch_s(rules, turns, pool, turns.awake)
        # It was woken for somebody, who may well ask again; but not for ever.
        if kept and not (idle and need.waited >= price / 2):
            continue
        if at - need.since >= rules.most_wait_s:
            late.append((need.since, pool))
        elif idle or need.waited >= served * price:
            worth.append((-need.waited, pool))
    found = sorted(late) or sorted(worth)
    return found[0][1] if found else None


def _while_draining(rules: Rules, turns: Turns, own: PoolNow, at: float) -> Turns:
    if turns.next not in turns.needs:
        # Who waited has gone: it stays awake, and may be asked again at once.
        return _step(turns, at - rules.least_awake_s, phase="awake", next="")
    drained_s = at - turns.since
    if own.up and not (drained_s >= rules.settle_s and own.running == 0) and drained_s < rules.drain_s:
        return turns
    return _step(turns, at, phase="sleeping", took=_measured(turns, "drain", turns.awake, drained_s))


def _while_falling_asleep(rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow], at: float) -> Turns:
    others = [now_of[pool] for pool in rules.pools if pool != turns.next]
    up, starting = sum(each.up for each in others), sum(each.starting for each in others)
    gone = at - turns.since
    if not up and (not starting or gone > START_S):
        took = turns.took
        if turns.awake != turns.next and not starting:
            took = _measured(turns, "sleep", turns.awake, gone)
        return _step(turns, at, phase="waking", took=took)
    if up and gone > MOVE_S:
        # It does not let go of the GPUs. Who has them goes on; the others are told of it.
        return _given_up(rules, turns, now_of, at)
    return turns


def _while_waking(rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow], at: float) -> Turns:
    own, gone = now_of[turns.next], at - turns.since
    if own.up and (not own.asleep or gone > MOVE_S):
        took = _measured(turns, "wake", turns.next, gone)
        needs = {pool: need for pool, need in turns.needs.items() if pool != turns.next}
        return _step(turns, at, phase="awake", awake=turns.next, next="", took=took, needs=needs)
    patience_s = MOVE_S if own.asleep else START_S
    if not (own.asleep or own.starting) and _others_wait(turns):
        patience_s = DOWN_S
    return _given_up(rules, turns, now_of, at) if gone > patience_s else turns


def _others_wait(turns: Turns) -> bool:
    return any(pool != turns.next and pool not in turns.failed for pool in turns.needs)


def _given_up(rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow], at: float) -> Turns:
    """Leave the next pool alone for a while, and give the GPUs to the pool that had them, or to the one that waits
    longest.
    """
    failed = {**turns.failed, turns.next: at + RETRY_S}
    if turns.awake != turns.next and now_of[turns.awake].up:
        return _step(turns, at, phase="awake", next="", failed=failed)
    waiting = sorted((need.since, pool) for pool, need in turns.needs.items() if pool not in failed)
    after = [pool for _, pool in waiting] or [pool for pool in (turns.awake, *rules.pools) if pool not in failed]
    return _step(turns, at, phase="sleeping", next=after[0] if after else turns.next, failed=failed)


def _step(turns: Turns, at: float, **changes: object) -> Turns:
    return msgspec.structs.replace(turns, since=at, **changes)


def _moves(rules: Rules, turns: Turns, now_of: Mapping[str, PoolNow]) -> Moves:
    keeps = turns.awake if turns.phase in ("awake", "draining") else turns.next
    up = tuple(pool for pool in rules.pools if pool != keeps and now_of[pool].up)
    if turns.phase == "waking":
        return Moves(sleep=up, wake=turns.next if now_of[turns.next].asleep and not up else None)
    return Moves(sleep=up)
