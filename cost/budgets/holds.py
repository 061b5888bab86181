"""Holds: the money of hard budgets, held before an attempt and turned into spending after it.

Of each hard budget a process knows three amounts: what it was granted, what it holds for running attempts, and what
it settled that the database does not have yet. The grant covers the other two, always; what is over serves the next
attempts at once. When nothing is over, all that wait share one transaction (`cost.budgets.grants`).

An attempt that is settled after midnight counts where it is booked. Its hold is part of the grant before and after, so
it fits in both periods.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from cost.budgets.budget import Budget, BudgetStatus, Scope, tag_id
from cost.budgets.grants import Grant, GrantNeed, GrantRequest, Grants
from cost.budgets.periods import end_us
from cost.errors import BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget
from cost.ledger.entries import TERMINAL, Entry
from cost.times import moment, wall_us

_log: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.25
"""How often what is over is given back of a budget that others need."""
_IDLE_S: Final = 1.0
"""How often it is of any budget."""
_FORGET_S: Final = 300.0
_DEAD_AFTER_US: Final = 3_600_000_000
_GONE_AFTER_US: Final = 600_000_000
_SETTLING_S: Final = 0.02
"""Long enough for a commit to be told to the one who waits for it."""
_MAX_WAITING: Final = 20_000
_DUTY_PATIENCE: Final = 5
"""A duty may take so many times as long as a request waits."""
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_UNAVAILABLE: Final = (
    "Whether the budgets have room cannot be told now: the database does not answer. Try again shortly."
)

Key = tuple[str, int]
"""Of an attempt: its request and its number."""
Teller = Callable[[Sequence[BudgetStatus]], Awaitable[None]]


class BudgetCheck(msgspec.Struct, frozen=True):
    """What is known of the budgets that a request falls under, without asking anybody."""

    exceeded: BudgetExceeded | None = None
    """A hard one is spent."""
    downgrade: bool = False
    """A soft one is spent whose owner asked for the cheapest capable target then."""


NOTHING: Final = BudgetCheck()


class _LocalBudget:
    """One budget as this process knows it. Only hard ones have anything but their spending."""

    __slots__ = (
        "asking",
        "booked",
        "budget",
        "granted",
        "held",
        "lacking",
        "removed",
        "scarce",
        "spent",
        "stored",
        "unbooked",
        "until_us",
        "used",
    )

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.spent = 0
        """Known to be booked in the period that ends at `until_us`."""
        self.until_us = 0
        self.granted = 0
        self.held = 0
        self.unbooked = 0
        self.booked = 0
        """All that this process ever brought into the database; it only grows."""
        self.stored = 0
        """The grant as the database has it: never less than `granted`."""
        self.asking = False
        """Its grant is being changed, so nothing may be taken from it."""
        self.used = 0
        """Held since what is over was last given back, however it ended: the next second may need as much."""
        self.scarce = False
        self.lacking = False
        """It was what the last change had too little of, for somebody at least."""
        self.removed = False

    @property
    def floor(self) -> int:
        """What cannot be given back."""
        return self.held + self.unbooked

    @property
    def free(self) -> int:
        """What may be held at once."""
        return self.granted - self.held - self.unbooked

    def fits(self, amount_nanousd: int) -> bool:
        return self.removed or amount_nanousd <= self.free

    def learn(self, budget: Budget, spent_nanousd: int, at_us: int) -> None:
        self.budget = budget
        self.spent = spent_nanousd
        self.until_us = end_us(budget.period, at_us)

    def is_spent(self, now_us: int, amount_nanousd: int = 0) -> bool:
        """Known for sure: what is booked leaves no room for this amount, or for anything."""
        left = self.budget.limit_nanousd - self.spent
        return now_us < self.until_us and (left <= 0 or amount_nanousd > left)

    def exceeded(self, now_us: int) -> BudgetExceeded:
        resets_us = end_us(self.budget.period, now_us)
        return BudgetExceeded(
            scope=self.budget.scope,
            scope_id=self.budget.shown_id,
            period=self.budget.period,
            limit_nanousd=self.budget.limit_nanousd,
            resets_at=moment(resets_us),
            downgrade=self.budget.on_exhausted == "downgrade",
            spent=self.is_spent(now_us),
            retry_after_s=(resets_us - now_us) / 1_000_000,
        )


class _Hold(msgspec.Struct, frozen=True):
    pots: tuple[_LocalBudget, ...]
    amount_nanousd: int


class _Waiter(msgspec.Struct):
    key: Key
    hold: _Hold
    future: "asyncio.Future[None]"
    looks: int = 0


class Holds:
    """All holds of one process. Use from one event loop."""

    def __init__(
        self,
        grants: Grants,
        boot_id: Callable[[], str],
        *,
        patience_s: float = 2.0,
        poll_s: float = 2.0,
        now_us: Callable[[], int] = wall_us,
        refused: Callable[[Scope], None] = lambda _scope: None,
        tell: Teller | None = None,
    ) -> None:
        self._grants = grants
        self._boot_id = boot_id
        self._patience_s = patience_s
        self._poll_s = poll_s
        self.now_us = now_us
        self._refused = refused
        self._tell = tell
        self._learned = False
        self._pots: dict[str, _LocalBudget] = {}
        self._index: dict[tuple[str, str], tuple[_LocalBudget, ...]] = {}
        self._open: dict[Key, _Hold] = {}
        self._unbooked: dict[Key, _Hold] = {}
        self._waiting: list[_Waiter] = []
        self._learning = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._closed = False
        self._gone_since_us: dict[str, int] = {}
        self.failures = 0
        """How often the database did not answer."""

    # What a request asks.

    def check(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> BudgetCheck:
        """What is known of the budgets of a caller, as of the last poll."""
        if not self._index:
            return NOTHING
        now_us = self.now_us()
        spent = [pot for pot in self._applying(organisation_id, team_id, key_id, tag) if pot.is_spent(now_us)]
        hard = next((pot for pot in spent if pot.budget.hard), None)
        if hard is not None:
            self._refused(hard.budget.scope)
            return BudgetCheck(exceeded=hard.exceeded(now_us))
        return BudgetCheck(downgrade=any(pot.budget.on_exhausted == "downgrade" for pot in spent))

    async def hold(self, entry: Entry, hold_nanousd: int | None) -> bool:
        """Hold money for an attempt of every hard budget that it falls under; tells whether it had to wait.

        Raises BudgetExceeded, BudgetsUnavailable or UnpricedUnderBudget, and holds nothing then.
        """
        if not self._learned:
            await self._learn()
        if not self._index:
            return False
        pots = tuple(
            pot
            for pot in self._applying(entry.organisation_id, entry.team_id, entry.key_id, entry.tag)
            if pot.budget.hard
        )
        if not pots:
            return False
        amount = entry.cost_nanousd if hold_nanousd is None else hold_nanousd
        if amount is None:
            raise UnpricedUnderBudget(
                f"`{entry.target_id}` has no price, so it cannot be called under a hard budget of {_whose(pots[0])}."
            )
        self._refuse_what_is_spent(pots, amount)
        hold, key = _Hold(pots, max(0, amount)), (entry.request_id, entry.attempt)
        if all(pot.fits(hold.amount_nanousd) and not pot.asking for pot in pots):
            self._take(key, hold)
            return False
        await self._wait(key, hold)
        return True

    def release(self, entry: Entry) -> None:
        """Give a hold back whose attempt is not made."""
        self._give_back((entry.request_id, entry.attempt))

    def settle(self, entry: Entry) -> None:
        """Turn a hold into what its attempt did cost. An attempt without a hold changes nothing."""
        key = (entry.request_id, entry.attempt)
        hold = self._give_back(key)
        cost = 0 if entry.entry == "void" else entry.cost_nanousd or 0
        if hold is not None and cost > 0:
            self._unbooked[key] = _Hold(hold.pots, cost)
            for pot in hold.pots:
                pot.unbooked += cost

    def booked(self, entries: Iterable[Entry]) -> None:
        """The database has these entries now, and so their cost is no longer this process's to cover."""
        if not self._unbooked:
            return
        for entry in entries:
            settled = self._unbooked.pop((entry.request_id, entry.attempt), None) if entry.entry in TERMINAL else None
            if settled is None:
                continue
            for pot in settled.pots:
                pot.unbooked -= settled.amount_nanousd
                pot.granted -= settled.amount_nanousd
                pot.booked += settled.amount_nanousd

    # The process's life.

    async def start(self) -> None:
        """Learn the budgets, and keep looking. Without a database, requests wait for it instead."""
        with contextlib.suppress(BudgetsUnavailable):
            await self._learn()
        self._loop = asyncio.create_task(self._run(), name="budgets")

    async def aclose(self) -> None:
        """Give back everything but what the database does not have yet. The books are closed before."""
        self._closed = True
        for task in (self._loop, self._worker):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._fail(self._waiting, BudgetsUnavailable(_UNAVAILABLE))
        async with self._changing:
            await self._change(
                [(pot, GrantNeed(floor_nanousd=pot.floor)) for pot in self._pots.values() if _stale(pot)]
            )

    async def poll(self) -> list[BudgetStatus]:
        """Look at all budgets, and at what was spent of them. Raises what the database raises."""
        at_us = self.now_us()
        async with asyncio.timeout(self._patience_s):
            found = await self._grants.standings(at_us)
        self._adopt(found, at_us)
        return found

    async def tidy(self, *, scarce_only: bool = False) -> None:
        """Give back what is over: all of it where nothing was held since the last time."""
        async with self._changing:
            asks: list[tuple[_LocalBudget, GrantNeed]] = []
            for pot in self._pots.values():
                if scarce_only and not pot.scarce:
                    continue
                keep = max(0, pot.free) if pot.used and not pot.scarce else 0
                pot.used = 0
                if pot.budget.hard and pot.floor + keep != pot.stored:
                    asks.append((pot, GrantNeed(floor_nanousd=pot.floor, keep_nanousd=keep)))
            await self._change(asks)
        self._wake()

    async def forget_dead(self) -> None:
        """Do so for every process that was not seen for an hour, or is no longer known, and has nothing open.

        It has ten minutes from when that is noticed: after a long outage of the database all look dead, and whoever
        comes back first must not take what the others hold for attempts that the database has never heard of.
        """
        now_us = self.now_us()
        dead, unknown = await self._grants.closed_boots(now_us - _DEAD_AFTER_US)
        mine = self._boot_id()
        if mine in unknown:
            # Nobody tells here who lives.
            unknown = []
        gone = [each for each in (*dead, *unknown) if each != mine]
        self._gone_since_us = {each: self._gone_since_us.get(each, now_us) for each in gone}
        for boot_id, since_us in self._gone_since_us.items():
            if now_us - since_us > _GONE_AFTER_US:
                await self._grants.forget_boot(boot_id)

    async def _run(self) -> None:
        """Ticks; each duty has its own time. None of them may end the loop."""
        duties: dict[Callable[[], Awaitable[None]], float] = {
            lambda: self.tidy(scarce_only=True): _TICK_S,
            self.tidy: _IDLE_S,
            self._poll_and_tell: self._poll_s,
            self.forget_dead: _FORGET_S,
        }
        clock = asyncio.get_running_loop().time
        due = {duty: clock() + every_s for duty, every_s in duties.items()}
        while True:
            await asyncio.sleep(_TICK_S)
            for duty, every_s in duties.items():
                began = clock()
                if began < due[duty]:
                    continue
                await self._try(duty)
                # A database that takes long to answer is asked less often.
                due[duty] = clock() + max(every_s, 5 * (clock() - began))

    async def _try(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            # One that hangs must not keep the others waiting.
            async with asyncio.timeout(_DUTY_PATIENCE * self._patience_s):
                await duty()
        except _DATABASE_FAILS as failure:
            self.failures += 1
            _log.warning("budgets: the database does not answer: %s", type(failure).__name__)
        except Exception:  # noqa: BLE001  Without this loop nobody would hear of a changed budget any more.
            _log.exception("looking after the budgets failed")

    async def _poll_and_tell(self) -> None:
        found = await self.poll()
        if self._tell is not None:
            await self._tell(found)

    # What is known.

    async def _learn(self) -> None:
        """Once for all who wait for it."""
        try:
            async with asyncio.timeout(self._patience_s), self._learning:
                if not self._learned:
                    await self.poll()
        except _DATABASE_FAILS as failure:
            self.failures += 1
            raise BudgetsUnavailable(_UNAVAILABLE) from failure

    def _adopt(self, found: Sequence[BudgetStatus], at_us: int) -> None:
        before, self._pots = self._pots, {}
        index: dict[tuple[str, str], list[_LocalBudget]] = {}
        for each in found:
            budget = each.budget
            pot = before.pop(budget.budget_id) if budget.budget_id in before else _LocalBudget(budget)
            self._pots[budget.budget_id] = pot
            pot.learn(budget, each.spent_nanousd, at_us)
            pot.removed = False
            index.setdefault((budget.scope, budget.scope_id), []).append(pot)
        for gone, pot in before.items():
            pot.removed, pot.granted, pot.stored = True, 0, -1
            if pot.floor:
                self._pots[gone] = pot
        self._index = {scope: tuple(pots) for scope, pots in index.items()}
        self._learned = True

    def _applying(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> tuple[_LocalBudget, ...]:
        index = self._index
        found = index.get(("organisation", organisation_id), ())
        found += index.get(("team", team_id), ())
        found += index.get(("key", key_id), ())
        return found + index.get(("tag", tag_id(organisation_id, tag)), ()) if tag else found

    def _refuse_what_is_spent(self, pots: Sequence[_LocalBudget], amount_nanousd: int) -> None:
        now_us = self.now_us()
        lacking = [pot for pot in pots if amount_nanousd > 0 and pot.is_spent(now_us, amount_nanousd)]
        if lacking:
            raise self._refusal(lacking)

    def _refusal(self, lacking: Sequence[_LocalBudget]) -> BudgetExceeded:
        # One whose owner wants a refusal decides over one whose owner would rather have a cheaper target.
        pot = next((pot for pot in lacking if pot.budget.on_exhausted == "refuse"), lacking[0])
        self._refused(pot.budget.scope)
        return pot.exceeded(self.now_us())

    # Taking and giving back.

    def _take(self, key: Key, hold: _Hold) -> None:
        self._open[key] = hold
        for pot in hold.pots:
            pot.held += hold.amount_nanousd
            pot.used += hold.amount_nanousd

    def _give_back(self, key: Key) -> _Hold | None:
        hold = self._open.pop(key, None)
        if hold is not None:
            for pot in hold.pots:
                pot.held -= hold.amount_nanousd
        return hold

    async def _wait(self, key: Key, hold: _Hold) -> None:
        if self._closed or len(self._waiting) >= _MAX_WAITING:
            raise BudgetsUnavailable(_UNAVAILABLE)
        waiter = _Waiter(key, hold, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake()
        try:
            async with asyncio.timeout(self._patience_s):
                await waiter.future
        except BaseException as failure:
            if not waiter.future.cancel() and not waiter.future.cancelled() and waiter.future.exception() is None:
                # It was given at the very moment that nobody wanted it any more.
                self._give_back(key)
            if isinstance(failure, TimeoutError):
                raise BudgetsUnavailable(_UNAVAILABLE) from failure
            raise

    # Changing grants. One change at a time, for everybody who waits.

    def _wake(self) -> None:
        if self._waiting and not self._closed and (self._worker is None or self._worker.done()):
            self._worker = asyncio.create_task(self._work(), name="budget-holds")

    async def _work(self) -> None:
        try:
            while self._waiting:
                async with self._changing:
                    again = await self._round()
                if again:
                    # Some of this process's own spending may be counted twice: committed, but not told yet.
                    await asyncio.sleep(_SETTLING_S)
        except Exception as failure:  # noqa: BLE001  Whoever waits must not wait for nothing.
            _log.exception("holding money failed")
            self._fail(self._waiting, BudgetsUnavailable(str(failure)))

    async def _round(self) -> bool:
        """Serve all who wait now, in their order; True when some should be looked at again a little later."""
        batch = [waiter for waiter in self._waiting if not waiter.future.done()]
        wanted: dict[str, int] = {}
        pots: dict[str, _LocalBudget] = {}
        for waiter in batch:
            for pot in waiter.hold.pots:
                name = pot.budget.budget_id
                pots[name] = pot
                wanted[name] = wanted.get(name, 0) + waiter.hold.amount_nanousd
        short = {name: pot for name, pot in pots.items() if not pot.fits(wanted[name])}
        uncertain = {name for name, pot in short.items() if pot.unbooked}
        # All of them, so that whoever comes meanwhile takes nothing away from those who wait.
        for pot in pots.values():
            pot.asking = True
        try:
            answered = await self._change(
                [(pot, GrantNeed(floor_nanousd=pot.floor, keep_nanousd=pot.used)) for pot in short.values()],
                [_want(waiter) for waiter in batch],
            )
        finally:
            for pot in pots.values():
                pot.asking = False
        served = set(map(id, batch))
        self._waiting = [each for each in self._waiting if id(each) not in served and not each.future.done()]
        if not answered:
            self._fail(batch, BudgetsUnavailable(_UNAVAILABLE))
            return False
        again = [waiter for waiter in batch if not self._serve(waiter, short, uncertain)]
        self._waiting[:0] = again
        return bool(again)

    def _serve(self, waiter: _Waiter, asked: dict[str, _LocalBudget], uncertain: set[str]) -> bool:
        """Grant or refuse; False when it should be looked at again."""
        if waiter.future.done():
            return True
        lacking = [pot for pot in waiter.hold.pots if not pot.fits(waiter.hold.amount_nanousd)]
        if not lacking:
            self._take(waiter.key, waiter.hold)
            waiter.future.set_result(None)
            return True
        names = {pot.budget.budget_id for pot in lacking}
        if waiter.looks == 0 and (names & uncertain or not names <= asked.keys()):
            waiter.looks += 1
            return False
        # Where one budget has too little, nothing is granted of the others either; they are not to blame.
        waiter.future.set_exception(self._refusal([pot for pot in lacking if pot.lacking] or lacking))
        return True

    async def _change(self, asks: Sequence[tuple[_LocalBudget, GrantNeed]], wants: Sequence[GrantRequest] = ()) -> bool:
        """Change grants in the database and here; False when it does not answer, and then nothing is over any more."""
        if not asks:
            return True
        booked = [pot.booked for pot, _ in asks]
        others = [pot for pot, _ in asks if not pot.asking]
        for pot in others:
            pot.asking = True
        at_us = self.now_us()
        try:
            async with asyncio.timeout(self._patience_s):
                by_id = {pot.budget.budget_id: ask for pot, ask in asks}
                given = await self._grants.regrant(self._boot_id(), by_id, wants, at_us)
        except BaseException as failure:
            # The database may have the old grant or the new one: what both cover is safe.
            for (pot, ask), before in zip(asks, booked, strict=True):
                pot.granted = min(pot.granted, ask.floor_nanousd - (pot.booked - before))
                pot.stored = -1
            if not isinstance(failure, _DATABASE_FAILS):
                raise
            self.failures += 1
            _log.warning("budgets: the database does not change grants: %s", type(failure).__name__)
            return False
        finally:
            for pot in others:
                pot.asking = False
        for (pot, _), before in zip(asks, booked, strict=True):
            self._granted(pot, given.get(pot.budget.budget_id), pot.booked - before, at_us)
        return True

    @staticmethod
    def _granted(pot: _LocalBudget, grant: Grant | None, booked_nanousd: int, at_us: int) -> None:
        if grant is None:
            pot.removed, pot.granted, pot.stored = True, 0, 0
            return
        # What reached the database meanwhile may not be in what it counted as spent: it is taken off here.
        pot.granted = grant.granted_nanousd - booked_nanousd
        pot.stored = grant.granted_nanousd
        pot.scarce, pot.lacking = grant.scarce, grant.lacking
        pot.learn(grant.room.budget, grant.room.spent_nanousd, at_us)

    @staticmethod
    def _fail(waiters: Sequence[_Waiter], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)


def _want(waiter: _Waiter) -> GrantRequest:
    return GrantRequest(
        amount_nanousd=waiter.hold.amount_nanousd,
        budget_ids=tuple(pot.budget.budget_id for pot in waiter.hold.pots),
    )


def _stale(pot: _LocalBudget) -> bool:
    return pot.budget.hard and pot.stored != pot.floor


def _whose(pot: _LocalBudget) -> str:
    return f"{pot.budget.scope} `{pot.budget.scope_id}`"
