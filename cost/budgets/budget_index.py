"""The budgets that a request falls under, found by its names."""

from collections.abc import Iterable, Iterator

from cost.budgets.budget import Budget, nearest
from cost.ledger.entries import Entry
from cost.scopes import SCOPES, Spender


class BudgetIndex:
    """Budgets by scope and id; what nobody has a budget for costs no look."""

    def __init__(self, budgets: Iterable[Budget] = ()) -> None:
        self._at: dict[tuple[str, str], list[Budget]] = {}
        for each in budgets:
            self._at.setdefault((each.scope, each.scope_id), []).append(each)
        used = {scope for scope, _ in self._at}
        self._scopes = tuple(row for row in SCOPES if row.name in used)

    def __bool__(self) -> bool:
        """Return True if there is any budget."""
        return bool(self._at)

    def of(self, spender: Spender | Entry) -> Iterator[Budget]:
        """Yield the budgets that a request falls under; one for each of many as it holds for this one."""
        for row in self._scopes:
            scope_id = row.id_of(spender)
            if not scope_id:
                continue
            own = self._at.get((row.name, scope_id), ())
            if not row.each:
                yield from own
                continue
            defaults = (self._at.get((row.name, each), ()) for each in row.defaults_of(spender))
            for budget in nearest(own, *defaults):
                yield budget if budget.scope_id == scope_id else budget.of_each(scope_id)
