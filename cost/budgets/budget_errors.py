"""What can be wrong with a budget that people set."""


class BudgetError(Exception):
    """Something about a budget that its reader can mend. The message says what."""


class BadBudget(BudgetError):
    """It cannot be kept like this."""


class UnknownBudget(BudgetError):
    """There is no such budget, or it is another organisation's: the two must look the same."""


class BudgetConflict(BudgetError):
    """Another budget stands in the way."""
