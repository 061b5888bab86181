"""Grants in memory, with the guarantees of GrantStore within one process; for tests and trials."""

from collections.abc import Mapping, Sequence

from cost.budgets.budget import Budget, BudgetStatus
from cost.budgets.grants import BudgetRoom, Grant, GrantNeed, GrantRequest, share_out
from cost.budgets.periods import end_us, start_us
from cost.times import QUARTER_US


class MemoryGrants:
    """Budgets, daily spending and grants in dictionaries. Set `down` to make every call fail with OSError."""

    def __init__(self, *budgets: Budget) -> None:
        self.budgets = {each.budget_id: each for each in budgets}
        self.spend: dict[tuple[str, str, int], int] = {}
        self.grants: dict[tuple[str, str], int] = {}
        self.down = False
        self.calls = 0

    def book(self, scope: str, scope_id: str, at_us: int, cost_nanousd: int) -> None:
        """Add to the spending of the quarter of an hour that `at_us` lies in."""
        key = (scope, scope_id, at_us - at_us % QUARTER_US)
        self.spend[key] = self.spend.get(key, 0) + cost_nanousd

    def spent(self, budget: Budget, from_us: int, to_us: int | None = None) -> int:
        """Return the spending of a budget's scope from `from_us` up to `to_us`."""
        return sum(
            amount
            for (scope, scope_id, quarter_us), amount in self.spend.items()
            if (scope, scope_id) == (budget.scope, budget.scope_id)
            and from_us <= quarter_us
            and (to_us is None or quarter_us < to_us)
        )

    async def renew_grants(
        self, boot_id: str, asks: Mapping[str, GrantNeed], wants: Sequence[GrantRequest], at_us: int
    ) -> dict[str, Grant]:
        """Replace this process's grants of these budgets."""
        self._count_call()
        rooms = {
            each: self._room(self.budgets[each], boot_id, at_us)
            for each in asks
            if each in self.budgets and self.budgets[each].hard
        }
        given = share_out(rooms, asks, wants)
        for each, grant in given.items():
            self.grants[each, boot_id] = grant.granted_nanousd
        return given

    async def standings(self, at_us: int) -> list[BudgetStatus]:
        """Return the status of every budget at a moment in microseconds since 1970."""
        self._count_call()
        return [
            BudgetStatus(
                budget=each,
                at_us=at_us,
                spent_nanousd=self.spent(each, start_us(each.period, at_us), end_us(each.period, at_us)),
                held_nanousd=self._granted(each, None),
            )
            for each in self.budgets.values()
        ]

    async def forget_boot(self, boot_id: str) -> None:
        """Delete the grants of a dead process."""
        self._count_call()
        self.grants = {key: amount for key, amount in self.grants.items() if key[1] != boot_id}

    async def closed_boots(self, seen_before_us: int) -> tuple[list[str], list[str]]:  # noqa: ARG002  It knows no boots.
        """Return two empty lists: no process is known to be dead."""
        self._count_call()
        return [], []

    def _count_call(self) -> None:
        self.calls += 1
        if self.down:
            raise OSError("connection refused")

    def _room(self, budget: Budget, boot_id: str, at_us: int) -> BudgetRoom:
        start, end = start_us(budget.period, at_us), end_us(budget.period, at_us)
        return BudgetRoom(
            budget=budget,
            spent_nanousd=max(self.spent(budget, start, end), self.spent(budget, end)),
            others_nanousd=self._granted(budget, boot_id),
            mine_nanousd=self.grants.get((budget.budget_id, boot_id), 0),
            at_us=at_us,
        )

    def _granted(self, budget: Budget, except_boot_id: str | None) -> int:
        return sum(
            amount
            for (each, boot_id), amount in self.grants.items()
            if each == budget.budget_id and boot_id != except_boot_id
        )
