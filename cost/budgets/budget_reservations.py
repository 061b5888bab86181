"""Reservations: money of hard budgets, held before an attempt and turned into spending after it.

Of each hard budget a process knows three amounts: its grant, its holds for running attempts, and what it settled that
the database does not have yet. The grant always covers the other two; the rest serves the next attempts without a
query. When nothing is left over, all waiting holds share one transaction (`cost.budgets.grants`).

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
from cost.budgets.periods import PERIODS, end_us
from cost.calendar import UTC_CALENDAR, Calendar
from cost.errors import BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget
from cost.ledger.entries import AttemptKey, Entry
from cost.times import moment, wall_us
from settings.key_ids import first_id

_log: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.25
"""Interval at which unused grants of scarce budgets are given back."""
_IDLE_S: Final = 1.0
"""Interval at which unused grants of all budgets are given back."""
_SETTLING_S: Final = 0.02
"""Pause before a second look: long enough for the drain to tell of a commit."""
_MAX_WAITING: Final = 20_000
_DUTY_PATIENCE: Final = 5
"""Timeout of a background duty, as a multiple of `patience_s`."""
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_UNAVAILABLE: Final = (
    "Whether the budgets have room cannot be told now: the database does not answer. Try again shortly."
)


class BudgetCheck(msgspec.Struct, frozen=True):
    """Status of the budgets that a request falls under, as this process knows it without a query."""

    exceeded: BudgetExceeded | None = None
    """Set if a hard budget is spent; to be raised or told."""
    downgrade: bool = False
    """True if a soft budget is spent whose `on_exhausted` is `downgrade`: take the cheapest capable target."""
    hard: bool = False
    """True if a hard budget holds money for the request's attempts."""


NOTHING: Final = BudgetCheck()


class _LocalBudget:
    """One budget as this process knows it. Only hard budgets have grants and holds; soft ones have their spending."""

    __slots__ = (
        "asking",
        "booked",
        "budget",
        "calendar",
        "granted",
        "held",
        "lacking",
        "left",
        "over",
        "raise_ends_us",
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
        self.calendar = UTC_CALENDAR
        self.raise_ends_us = 0
        """End of the raise that the grant was given under; 0 for none."""
        self.granted = 0
        self.held = 0
        self.unbooked = 0
        self.booked = 0
        """All that this process ever brought into the database, in nano-dollars; it only grows."""
        self.stored = 0
        """The grant as the database has it, never less than `granted`; -1 while unknown."""
        self.asking = False
        """True while its grant is being changed: nothing may be taken from it then."""
        self.used = 0
        """Held since grants were last given back, however it ended: the next second may need as much."""
        self.scarce = False
        self.lacking = False
        """True if the last change refused at least one hold for want of this budget."""
        self.over = 0
        """Part of the grant that the limit has no room for: what ends of it is not free again."""
        self.left = 0
        """What one more hold could have been of then."""
        self.removed = False

    @property
    def floor(self) -> int:
        """Part of the grant that cannot be given back: held, or settled and not yet in the database."""
        return self.held + self.unbooked

    @property
    def free(self) -> int:
        """Part of the grant that a new hold can take at once."""
        return self.granted - self.held - self.unbooked - self.over

    def fits(self, amount_nanousd: int) -> bool:
        return self.removed or amount_nanousd <= self.free

    def learn(self, budget: Budget, spent_nanousd: int, at_us: int, calendar: Calendar) -> None:
        if budget.limit_at(at_us) < self.budget.limit_at(at_us):
            self.over = self.granted
        self.budget = budget
        self.spent = spent_nanousd
        self.calendar = calendar
        self.until_us = end_us(budget.period, at_us, calendar)

    def lapse(self, now_us: int) -> None:
        """Take nothing more of what was granted under a raise that has ended: the old limit may have no room for it."""
        if self.raise_ends_us and now_us >= self.raise_ends_us:
            self.raise_ends_us = 0
            self.over = self.granted

    def is_spent(self, now_us: int, amount_nanousd: int = 0) -> bool:
        """Return True if booked spending alone leaves no room for this amount, or for anything; False if unsure."""
        left = self.budget.limit_at(now_us) - self.spent
        return now_us < self.until_us and (left <= 0 or amount_nanousd > left)

    def exceeded(self, now_us: int) -> BudgetExceeded:
        row, resets_us = PERIODS[self.budget.period], end_us(self.budget.period, now_us, self.calendar)
        limit = self.budget.limit_at(now_us)
        left = self.left if self.lacking else limit - self.spent - self.floor
        return BudgetExceeded(
            scope=self.budget.scope,
            scope_id=self.budget.shown_id,
            period_adjective=row.adjective,
            limit_nanousd=limit,
            resets_at=moment(resets_us) if row.renews else None,
            downgrade=self.budget.on_exhausted == "downgrade",
            spent=self.is_spent(now_us),
            retry_after_s=(resets_us - now_us) / 1_000_000 if row.renews else 0.0,
            left_nanousd=max(0, left),
        )


class _Hold(msgspec.Struct, frozen=True):
    budgets: tuple[_LocalBudget, ...]
    amount_nanousd: int


class _Waiter(msgspec.Struct):
    key: AttemptKey
    hold: _Hold
    future: "asyncio.Future[None]"
    looks: int = 0


class BudgetReservations:
    """All holds of one process; single-threaded, for one event loop."""

    def __init__(
        self,
        grants: Grants,
        boot_id: Callable[[], str],
        *,
        patience_s: float = 2.0,
        poll_s: float = 2.0,
        now_us: Callable[[], int] = wall_us,
        refused: Callable[[Scope], None] = lambda _scope: None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """`look` causes a call of `booked` now, for all attempts that the database has by now."""
        self._grants = grants
        self._boot_id = boot_id
        self._patience_s = patience_s
        self._poll_s = poll_s
        self.now_us = now_us
        self._refused = refused
        self._look = look
        self._learned = False
        self._budgets: dict[str, _LocalBudget] = {}
        self._index: dict[tuple[str, str], tuple[_LocalBudget, ...]] = {}
        self._open: dict[AttemptKey, _Hold] = {}
        self._unbooked: dict[AttemptKey, _Hold] = {}
        self._waiting: list[_Waiter] = []
        self._learning = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._closed = False
        self.failures = 0
        """Times that the database failed or did not answer in time."""

    # Called for each request.

    def check(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> BudgetCheck:
        """Return whether a caller's budgets are spent, as of the last poll; no query."""
        if not self._index:
            return NOTHING
        now_us = self.now_us()
        applicable = self._applicable(organisation_id, team_id, key_id, tag)
        spent = [local for local in applicable if local.is_spent(now_us)]
        hard = next((local for local in spent if local.budget.hard), None)
        if hard is not None:
            self._refused(hard.budget.scope)
            return BudgetCheck(exceeded=hard.exceeded(now_us))
        return BudgetCheck(
            downgrade=any(local.budget.on_exhausted == "downgrade" for local in spent),
            hard=any(local.budget.hard for local in applicable),
        )

    @property
    def none_needed(self) -> bool:
        """True while there is no budget at all, as of the last poll."""
        return self._learned and not self._index

    async def hold(self, entry: Entry, hold_nanousd: int | None) -> bool:
        """Hold money for an attempt on every hard budget that it falls under; return whether it had to wait.

        `hold_nanousd` None takes the entry's own cost. Raises BudgetExceeded, BudgetsUnavailable or
        UnpricedUnderBudget, and holds nothing then.
        """
        if not self._learned:
            await self._ensure_polled()
        if not self._index:
            return False
        budgets = tuple(
            local
            for local in self._applicable(entry.organisation_id, entry.team_id, entry.key_id, entry.tag)
            if local.budget.hard
        )
        if not budgets:
            return False
        amount = entry.cost_nanousd if hold_nanousd is None else hold_nanousd
        if amount is None:
            raise UnpricedUnderBudget(
                f"`{entry.target_id}` has no price, so it cannot be called under a hard budget of {_scope_label(budgets[0])}."
            )
        now_us = self.now_us()
        for local in budgets:
            local.lapse(now_us)
        self._refuse_spent(budgets, amount)
        hold, key = _Hold(budgets, max(0, amount)), (entry.request_id, entry.attempt)
        if all(local.fits(hold.amount_nanousd) and not local.asking for local in budgets):
            self._take_hold(key, hold)
            return False
        await self._wait_for_grant(key, hold)
        return True

    def holds(self, entry: Entry) -> bool:
        """Return True while a hard budget holds money for this attempt."""
        return (entry.request_id, entry.attempt) in self._open

    def release(self, entry: Entry) -> None:
        """Drop the hold of an attempt that is not made."""
        self._drop_hold((entry.request_id, entry.attempt))

    def settle(self, entry: Entry) -> None:
        """Turn a hold into what its attempt cost. An attempt without a hold changes nothing."""
        if not self._open:
            return
        key = (entry.request_id, entry.attempt)
        hold = self._drop_hold(key)
        cost = 0 if entry.entry == "void" else entry.cost_nanousd or 0
        if hold is not None and cost > 0:
            self._unbooked[key] = _Hold(hold.budgets, cost)
            for local in hold.budgets:
                local.unbooked += cost

    def awaits(self, key: AttemptKey) -> bool:
        """Return True if this attempt's cost is part of a grant until the database has it."""
        return key in self._unbooked

    def booked(self, keys: Iterable[AttemptKey]) -> None:
        """Take note that the database has the ends of these attempts: their cost leaves this process's grant."""
        for key in keys:
            settled = self._unbooked.pop(key, None)
            if settled is None:
                continue
            for local in settled.budgets:
                local.unbooked -= settled.amount_nanousd
                local.granted -= settled.amount_nanousd
                local.booked += settled.amount_nanousd

    # Lifecycle and background duties.

    async def start(self) -> None:
        """Read the budgets and start the background task. Without a database, `hold` reads them on first use."""
        with contextlib.suppress(BudgetsUnavailable):
            await self._ensure_polled()
        self._loop = asyncio.create_task(self._run(), name="budgets")

    async def aclose(self) -> None:
        """Stop the task, fail the waiting holds, and give back all but the floor. The ledger is closed before."""
        self._closed = True
        for task in (self._loop, self._worker):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._fail_waiters(self._waiting, BudgetsUnavailable(_UNAVAILABLE))
        async with self._changing:
            await self._regrant(
                [
                    (local, GrantNeed(floor_nanousd=local.floor))
                    for local in self._budgets.values()
                    if _needs_regrant(local)
                ]
            )

    async def poll(self) -> list[BudgetStatus]:
        """Read every budget and its spending, and return them. Raises what the database raises."""
        at_us = self.now_us()
        async with asyncio.timeout(self._patience_s):
            found = await self._grants.standings(at_us)
        self._replace_budgets(found, at_us)
        return found

    async def tidy(self, *, scarce_only: bool = False) -> None:
        """Give back unused grants; a budget used since the last call, and not scarce, keeps what it has."""
        async with self._changing:
            self._look()
            asks: list[tuple[_LocalBudget, GrantNeed]] = []
            for local in self._budgets.values():
                if scarce_only and not local.scarce:
                    continue
                keep = max(0, local.free) if local.used and not local.scarce else 0
                local.used = 0
                if local.budget.hard and local.floor + keep != local.stored:
                    asks.append((local, GrantNeed(floor_nanousd=local.floor, keep_nanousd=keep)))
            await self._regrant(asks)
        self._start_worker()

    async def _run(self) -> None:
        """Run each background duty at its own interval, forever. No failure ends the loop."""
        duties: dict[Callable[[], Awaitable[None]], float] = {
            lambda: self.tidy(scarce_only=True): _TICK_S,
            self.tidy: _IDLE_S,
            self._poll_quietly: self._poll_s,
        }
        clock = asyncio.get_running_loop().time
        due = {duty: clock() + every_s for duty, every_s in duties.items()}
        while True:
            # Without a budget there is nothing to give back, and the poll finds the first one.
            idle_s = 0.0 if self._budgets else due[self._poll_quietly] - clock()
            await asyncio.sleep(max(_TICK_S, idle_s))
            for duty, every_s in duties.items():
                began = clock()
                if began < due[duty]:
                    continue
                await self._run_duty(duty)
                # Back off from a slow database.
                due[duty] = clock() + max(every_s, 5 * (clock() - began))

    async def _run_duty(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            # A duty that hangs must not hold up the others.
            async with asyncio.timeout(_DUTY_PATIENCE * self._patience_s):
                await duty()
        except _DATABASE_FAILS as failure:
            self.failures += 1
            _log.warning("budgets: the database does not answer: %s", type(failure).__name__)
        except Exception:  # noqa: BLE001  Without this loop nobody would hear of a changed budget any more.
            _log.exception("looking after the budgets failed")

    async def _poll_quietly(self) -> None:
        await self.poll()

    # Local copies of the budgets.

    async def _ensure_polled(self) -> None:
        """Read the budgets once for all who wait for it. Raises BudgetsUnavailable."""
        try:
            async with asyncio.timeout(self._patience_s), self._learning:
                if not self._learned:
                    await self.poll()
        except _DATABASE_FAILS as failure:
            self.failures += 1
            raise BudgetsUnavailable(_UNAVAILABLE) from failure

    def _replace_budgets(self, found: Sequence[BudgetStatus], at_us: int) -> None:
        before, self._budgets = self._budgets, {}
        index: dict[tuple[str, str], list[_LocalBudget]] = {}
        for each in found:
            budget = each.budget
            local = before.pop(budget.budget_id) if budget.budget_id in before else _LocalBudget(budget)
            self._budgets[budget.budget_id] = local
            local.learn(budget, each.spent_nanousd, at_us, each.calendar)
            local.removed = False
            index.setdefault((budget.scope, budget.scope_id), []).append(local)
        for gone, local in before.items():
            local.removed, local.granted, local.stored = True, 0, -1
            if local.floor:
                self._budgets[gone] = local
        self._index = {scope: tuple(budgets) for scope, budgets in index.items()}
        self._learned = True

    def _applicable(self, organisation_id: str, team_id: str, key_id: str, tag: str) -> tuple[_LocalBudget, ...]:
        index = self._index
        found = index.get(("organisation", organisation_id), ())
        found += index.get(("team", team_id), ())
        found += index.get(("key", first_id(key_id)), ())
        return found + index.get(("tag", tag_id(organisation_id, tag)), ()) if tag else found

    def _refuse_spent(self, budgets: Sequence[_LocalBudget], amount_nanousd: int) -> None:
        now_us = self.now_us()
        lacking = [local for local in budgets if amount_nanousd > 0 and local.is_spent(now_us, amount_nanousd)]
        if lacking:
            raise self._refusal(lacking)

    def _refusal(self, lacking: Sequence[_LocalBudget]) -> BudgetExceeded:
        # A budget whose `on_exhausted` is `refuse` takes precedence over one that would downgrade.
        local = next((local for local in lacking if local.budget.on_exhausted == "refuse"), lacking[0])
        self._refused(local.budget.scope)
        told = local.exceeded(now_us := self.now_us())
        told.left_nanousd = min(each.exceeded(now_us).left_nanousd for each in lacking)
        return told

    # Taking and dropping holds.

    def _take_hold(self, key: AttemptKey, hold: _Hold) -> None:
        self._open[key] = hold
        for local in hold.budgets:
            local.held += hold.amount_nanousd
            local.used += hold.amount_nanousd

    def _drop_hold(self, key: AttemptKey) -> _Hold | None:
        hold = self._open.pop(key, None)
        if hold is not None:
            for local in hold.budgets:
                local.held -= hold.amount_nanousd
        return hold

    async def _wait_for_grant(self, key: AttemptKey, hold: _Hold) -> None:
        if self._closed or len(self._waiting) >= _MAX_WAITING:
            raise BudgetsUnavailable(_UNAVAILABLE)
        waiter = _Waiter(key, hold, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._start_worker()
        try:
            async with asyncio.timeout(self._patience_s):
                await waiter.future
        except BaseException as failure:
            if not waiter.future.cancel() and not waiter.future.cancelled() and waiter.future.exception() is None:
                # The hold was granted at the very moment of the timeout or cancellation.
                self._drop_hold(key)
            if isinstance(failure, TimeoutError):
                raise BudgetsUnavailable(_UNAVAILABLE) from failure
            raise

    # Changing grants: one change at a time, shared by all waiting holds.

    def _start_worker(self) -> None:
        if self._waiting and not self._closed and (self._worker is None or self._worker.done()):
            self._worker = asyncio.create_task(self._serve_waiting(), name="budget-holds")

    async def _serve_waiting(self) -> None:
        try:
            while self._waiting:
                async with self._changing:
                    again = await self._serve_batch()
                if again:
                    # Own spending may be counted twice for a moment: committed, while `booked` was not called yet.
                    await asyncio.sleep(_SETTLING_S)
        except Exception as failure:  # noqa: BLE001  Whoever waits must not wait for nothing.
            _log.exception("holding money failed")
            self._fail_waiters(self._waiting, BudgetsUnavailable(str(failure)))

    async def _serve_batch(self) -> bool:
        """Serve all that wait now, in order; return True if some are to be looked at again a little later."""
        # What the database counts as spent already must not be held here too.
        self._look()
        batch = [waiter for waiter in self._waiting if not waiter.future.done()]
        wanted: dict[str, int] = {}
        budgets: dict[str, _LocalBudget] = {}
        for waiter in batch:
            for local in waiter.hold.budgets:
                name = local.budget.budget_id
                budgets[name] = local
                wanted[name] = wanted.get(name, 0) + waiter.hold.amount_nanousd
        short = {name: local for name, local in budgets.items() if not local.fits(wanted[name])}
        uncertain = {name for name, local in short.items() if local.unbooked}
        # Block all of them, so that a newcomer takes nothing away from those that wait.
        for local in budgets.values():
            local.asking = True
        try:
            answered = await self._regrant(
                [(local, GrantNeed(floor_nanousd=local.floor, keep_nanousd=local.used)) for local in short.values()],
                [_as_grant_request(waiter) for waiter in batch],
            )
        finally:
            for local in budgets.values():
                local.asking = False
        served = set(map(id, batch))
        self._waiting = [each for each in self._waiting if id(each) not in served and not each.future.done()]
        if not answered:
            self._fail_waiters(batch, BudgetsUnavailable(_UNAVAILABLE))
            return False
        again = [waiter for waiter in batch if not self._grant_or_refuse(waiter, short, uncertain)]
        self._waiting[:0] = again
        return bool(again)

    def _grant_or_refuse(self, waiter: _Waiter, asked: dict[str, _LocalBudget], uncertain: set[str]) -> bool:
        """Grant or refuse one waiting hold; return False if it is to be looked at again."""
        if waiter.future.done():
            return True
        lacking = [local for local in waiter.hold.budgets if not local.fits(waiter.hold.amount_nanousd)]
        if not lacking:
            self._take_hold(waiter.key, waiter.hold)
            waiter.future.set_result(None)
            return True
        names = {local.budget.budget_id for local in lacking}
        if waiter.looks == 0 and (names & uncertain or not names <= asked.keys()):
            waiter.looks += 1
            return False
        # If one budget lacks room, the others were granted nothing either; only the lacking one is to blame.
        waiter.future.set_exception(self._refusal([local for local in lacking if local.lacking] or lacking))
        return True

    async def _regrant(
        self, asks: Sequence[tuple[_LocalBudget, GrantNeed]], wants: Sequence[GrantRequest] = ()
    ) -> bool:
        """Change grants in the database and here; False if the database fails, and then grants shrink to their floor."""
        if not asks:
            return True
        booked = [local.booked for local, _ in asks]
        others = [local for local, _ in asks if not local.asking]
        for local in others:
            local.asking = True
        at_us = self.now_us()
        try:
            async with asyncio.timeout(self._patience_s):
                by_id = {local.budget.budget_id: ask for local, ask in asks}
                given = await self._grants.renew_grants(self._boot_id(), by_id, wants, at_us)
        except BaseException as failure:
            # The database may have the old grant or the new one: only what both cover is safe to use.
            for (local, ask), before in zip(asks, booked, strict=True):
                local.granted = min(local.granted, ask.floor_nanousd - (local.booked - before))
                local.stored = -1
            if not isinstance(failure, _DATABASE_FAILS):
                raise
            self.failures += 1
            _log.warning("budgets: the database does not change grants: %s", type(failure).__name__)
            return False
        finally:
            for local in others:
                local.asking = False
        for (local, _), before in zip(asks, booked, strict=True):
            self._apply_grant(local, given.get(local.budget.budget_id), local.booked - before, at_us)
        return True

    @staticmethod
    def _apply_grant(local: _LocalBudget, grant: Grant | None, booked_nanousd: int, at_us: int) -> None:
        if grant is None:
            local.removed, local.granted, local.stored = True, 0, 0
            return
        # What was booked since the request may be missing from `spent` in the answer: take it off here.
        local.granted = grant.granted_nanousd - booked_nanousd
        local.stored = grant.granted_nanousd
        local.scarce, local.lacking, local.left = grant.scarce, grant.lacking, grant.left_nanousd
        budget = grant.room.budget
        local.raise_ends_us = budget.raised_until_us if at_us < budget.raised_until_us else 0
        local.learn(budget, grant.room.spent_nanousd, at_us, grant.room.calendar)
        local.over = grant.over_nanousd

    @staticmethod
    def _fail_waiters(waiters: Sequence[_Waiter], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)


def _as_grant_request(waiter: _Waiter) -> GrantRequest:
    return GrantRequest(
        amount_nanousd=waiter.hold.amount_nanousd,
        budget_ids=tuple(local.budget.budget_id for local in waiter.hold.budgets),
    )


def _needs_regrant(local: _LocalBudget) -> bool:
    return local.budget.hard and local.stored != local.floor


def _scope_label(local: _LocalBudget) -> str:
    return f"{local.budget.scope} `{local.budget.scope_id}`"
