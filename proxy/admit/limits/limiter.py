"""The rate limiter: takes from all of a request's limits or from none, in Redis or by this process's share of each.

While Redis is reached, it alone decides, for all processes exactly. When it is not, each process enforces limit / live
processes, beginning with its part of the levels that Redis told last. When Redis is back, each process tells it what it
took, and goes on by its share for a moment, so that the others can do the same before anyone takes tokens that they
have used. Meanwhile nothing is decided twice and nothing is forgotten, except corrections of token estimates that were
on their way when Redis was lost.

Without a Redis, one process is exact by itself, and of several each enforces its share.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from accounts.caller import Caller
from proxy.admit.limits.headers import rate_lines, remaining
from proxy.admit.limits.limit import Admission, Kind, Limit, Remaining, Scope
from proxy.admit.limits.limit_set import LimitSet, LimitSetCache, Outcome
from proxy.admit.limits.local import LocalBuckets, UnsentTake
from proxy.admit.limits.refusals import refusal, too_large
from proxy.admit.limits.shared import MOST_AT_ONCE, SharedBuckets
from proxy.shared.redis.shared_state import Link, ScriptRunner, SharedStateUnavailable

Mode = Literal["shared", "share", "process"]
"""The decider of limits: `shared`, Redis; `share`, this process with limit / live processes; `process`, this process as
the only one.
"""
MAX_USED_TOKENS: Final = 10_000_000
"""The most tokens that settling charges. No answer is larger; a wrong upstream report would lock its caller out for
days.
"""
REJOIN_S: Final = 1.0


class LimitObserver:
    """A receiver of the limiter's counts and states; this base class ignores them."""

    def count_local_admission(self) -> None:
        """Count a request that was decided by this process's share."""

    def count_rate_refusal(self, scope: Scope, kind: Kind) -> None: ...

    def set_limits_shared(self, *, shared: bool) -> None: ...


class _Unlimited:
    """The admission of a request that falls under no limit."""

    __slots__ = ()
    lines = b""

    def settle(self, used_tokens: int) -> None: ...


_UNLIMITED: Final = _Unlimited()


class _BucketAdmission(msgspec.Struct, eq=False):
    """An admission by buckets; see Admission."""

    limiter: "BucketLimiter"
    draw: LimitSet
    taken: int
    lines: bytes
    is_open: bool = True

    def settle(self, used_tokens: int) -> None:
        if self.is_open:
            self.is_open = False
            self.limiter.settle(self.draw, self.taken, used_tokens)


class BucketLimiter:
    """The Limiter over shared or local buckets; see the module. Must be built before the link is started."""

    def __init__(
        self,
        limits_of: Callable[[Caller, str, str], tuple[Limit, ...]],
        live: Callable[[], int],
        *,
        link: Link | None = None,
        observer: LimitObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        rejoin_s: float = REJOIN_S,
        redis_clock_us: Callable[[], bytes] = bytes,
    ) -> None:
        """`live` returns the number of processes, at least 1. `redis_clock_us` replaces Redis's clock in tests."""
        self._limits_of = limits_of
        self._live = live
        self._link = link
        self._observer = observer or LimitObserver()
        self._clock = clock
        self._rejoin_s = rejoin_s
        self._draws = LimitSetCache(link.prefix if link is not None else "")
        self._local = LocalBuckets()
        self._shared: SharedBuckets | None = None
        # Changes of what is in flight that the present holder was not told.
        self._uncounted: dict[str, int] = {}
        # How many shared the limits when Redis was away: until all have come back to it, Redis counts too few.
        self._live_apart: int | None = None
        self._was_lost = False
        self._rejoining: asyncio.TimerHandle | None = None
        if link is not None:
            self._shared = SharedBuckets(link, clock_us=redis_clock_us)
            link.on_lost(self._lost)
            link.on_recovered(self._recovered)
            link.on_usable(self._usable)
        self._sharing: SharedBuckets | None = None
        """The Redis buckets while Redis decides, else None."""
        self._observer.set_limits_shared(shared=False)

    @property
    def live(self) -> int:
        """The number of processes that share each limit."""
        return self._live_apart or self._live()

    @property
    def mode(self) -> Mode:
        if self._sharing is not None:
            return "shared"
        return "process" if self._link is None and self.live == 1 else "share"

    async def admit(
        self, caller: Caller, model: str, tokens: int, *, guessed: int = 0, end_user: str = ""
    ) -> Admission:
        """Admit as Limiter does. When the caller is cancelled while Redis decides, its admission by Redis is given
        back.
        """
        limits = self._limits_of(caller, model, end_user)
        if not limits:
            return _UNLIMITED
        draw = self._draws.of(limits)
        tokens = max(0, tokens)
        largest = draw.largest
        if largest is not None and tokens > largest.burst:
            tokens = max(tokens - guessed, largest.burst)
            if tokens > largest.burst:
                self._observer.count_rate_refusal(largest.scope, largest.kind)
                raise too_large(largest, tokens, caller, model)
        outcome = await self._admit_shared(draw, tokens) if self._sharing is not None else None
        live = 1
        if outcome is None:
            live = self.live
            outcome = self._admit_locally(draw, tokens, live)
        if outcome.admitted:
            return _BucketAdmission(self, draw, tokens, rate_lines(draw, outcome.figures, live))
        refused = refusal(draw, outcome, tokens, live, caller, model)
        self._observer.count_rate_refusal(refused.scope, refused.kind)
        raise refused

    async def peek(self, limits: tuple[Limit, ...]) -> tuple[Remaining, ...]:
        """Return the state of each limit, in the same order, without taking anything."""
        draw = self._draws.of(limits)
        outcome, live = None, 1
        if self._sharing is not None and limits:
            try:
                outcome = await self._sharing.peek(draw)
            except SharedStateUnavailable:
                outcome = None
        if outcome is None:
            live = self.live
            outcome = self._local.peek(draw, self._now_us(), live)
        told = {
            limit.key: remaining(limit, figure, live)
            for limit, figure in zip(draw.limits, outcome.figures, strict=True)
        }
        return tuple(told[limit.key] for limit in limits)

    def settle(self, draw: LimitSet, taken: int, used: int) -> None:
        """Settle an admission. `used` is clamped to 0…MAX_USED_TOKENS."""
        correction = taken - min(max(0, used), MAX_USED_TOKENS)
        self._local.end(draw)
        if self._sharing is not None and self._sharing.settle(draw, correction):
            return
        if self._link is not None:
            self._switch_to_share()
            self._leave_uncounted(draw, -1)
        if correction and draw.tokens:
            self._local.settle(draw, correction, self._now_us(), self.live)

    def close(self) -> None:
        """Cancel the pending rejoin."""
        if self._rejoining is not None:
            self._rejoining.cancel()
            self._rejoining = None

    async def _admit_shared(self, draw: LimitSet, tokens: int) -> Outcome | None:
        """Ask Redis. Return None when it does not answer, and switch to local shares for this and later requests."""
        assert self._sharing is not None  # noqa: S101 - its caller has seen it
        try:
            outcome = await self._sharing.admit(
                draw, tokens, lambda unwanted, holder: self._give_back(draw, tokens, unwanted, holder)
            )
        except SharedStateUnavailable:
            # It may have been executed all the same. Then its rate tokens are taken twice, until they are refilled; its
            # place in flight was the old holder's, and is given back with it.
            self._switch_to_share()
            return None
        if outcome.admitted:
            self._local.begin(draw)
        self._local.learn(draw, outcome, self._now_us())
        return outcome

    def _admit_locally(self, draw: LimitSet, tokens: int, live: int) -> Outcome:
        if self._link is not None or live > 1:
            self._observer.count_local_admission()
        outcome = self._local.admit(draw, tokens, self._now_us(), live)
        if outcome.admitted and self._link is not None:
            self._leave_uncounted(draw, 1)
        return outcome

    def _give_back(self, draw: LimitSet, tokens: int, unwanted: Outcome, holder: str) -> None:
        """Return the tokens and the place of a caller that hung up while Redis decided; the request itself stays
        counted.
        """
        if not unwanted.admitted or self._shared is None or self._link is None or self._link.holder != holder:
            # The holder is gone, and with it its counts in flight.
            return
        self._shared.settle(draw, tokens, holder)

    def _leave_uncounted(self, draw: LimitSet, more: int) -> None:
        for limit in draw.counted:
            self._uncounted[limit.key] = self._uncounted.get(limit.key, 0) + more

    def _switch_to_share(self) -> None:
        """Switch to local shares, until Redis is back or, where it is reachable, for a moment."""
        if self._link is None:
            return
        if self._sharing is not None:
            self._sharing = None
            self._observer.set_limits_shared(shared=False)
        if self._link.healthy and self._rejoining is None:
            self._rejoin_later()

    def _lost(self) -> None:
        self._was_lost = True
        self._live_apart = None
        self.close()
        self._switch_to_share()

    async def _recovered(self, asking: ScriptRunner) -> None:
        """Register the requests in flight under the new holder, and charge Redis for the tokens taken meanwhile."""
        if self._shared is None:
            return
        self._live_apart = self.live
        self._uncounted.clear()
        await self._shared.count_all(asking, dict(self._local.in_flight))
        await self._shared.charge_all(asking, self._owed)

    def _usable(self) -> None:
        """Schedule the return to Redis; at once when no other process could have decided anything meanwhile."""
        self._rejoin_later()
        if self._live_apart == 1 or not (self._was_lost or self._local.deciding):
            self._rejoin()

    def _rejoin_later(self) -> None:
        self.close()
        self._rejoining = asyncio.get_running_loop().call_later(self._rejoin_s, self._rejoin)

    def _rejoin(self) -> None:
        """Let Redis decide again once all local changes have been sent. Messages keep their order, so later calls see
        them.
        """
        self.close()
        if self._link is None or not self._link.healthy:
            return
        if not self._send_changes():
            self._rejoin_later()
            return
        self._local.rest(self._now_us())
        self._was_lost = False
        self._live_apart = None
        self._sharing = self._shared
        self._observer.set_limits_shared(shared=True)

    def _send_changes(self) -> bool:
        assert self._shared is not None  # noqa: S101 - there is one where there is a link
        counts = [(key, more) for key, more in self._uncounted.items() if more]
        for first in range(0, len(counts), MOST_AT_ONCE):
            some = counts[first : first + MOST_AT_ONCE]
            if not self._shared.count(some):
                return False
            for key, _ in some:
                del self._uncounted[key]
        self._uncounted.clear()
        rows = self._owed()
        while some_rows := list(islice(rows, MOST_AT_ONCE)):
            if not self._shared.charge(some_rows):
                self._local.take_back(some_rows)
                return False
        return True

    def _owed(self, born_us: float | None = None) -> Iterator[UnsentTake]:
        return self._local.hand_over(self._now_us, born_us)

    def _now_us(self) -> float:
        return self._clock() * 1e6
